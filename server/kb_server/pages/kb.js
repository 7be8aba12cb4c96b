// What only a script can: files dropped on the form, a list of jobs that follows by itself, and `/` for the search.
const drop = document.querySelector('.drop');
if (drop) {
  const input = drop.querySelector('input');
  for (const type of ['dragenter', 'dragover', 'dragleave', 'drop']) {
    drop.addEventListener(type, event => {
      event.preventDefault();
      drop.classList.toggle('over', type === 'dragenter' || type === 'dragover');
      if (type === 'drop') input.files = event.dataTransfer.files;
    });
  }
}

document.addEventListener('keydown', event => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, textarea, select')) return;
  event.preventDefault();
  const field = document.querySelector('[type=search]');
  if (field) field.select(); else location.assign('/');
});

const live = document.getElementById('live');
async function follow() {
  let pause = 10 * Number(live.dataset.again);
  try {
    const answer = await fetch(location.href);
    const found = answer.ok && new DOMParser().parseFromString(await answer.text(), 'text/html').getElementById('live');
    if (found) {
      pause = Number(found.dataset.again);
      if (!live.contains(document.activeElement)) live.innerHTML = found.innerHTML;
    }
  } catch {} // the server is away: look again later
  if (pause) setTimeout(follow, pause);
}
if (live && live.dataset.again) setTimeout(follow, Number(live.dataset.again));
