// Files dropped on the form, a list of jobs that follows by itself, `/` for the search, arrows for its results.
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
  const { key, target } = event, field = target.closest('input, textarea, select'), search = document.querySelector('[type=search]');
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey && key !== '/') return;
  if (key === '/' && !field) {
    event.preventDefault();
    if (search) search.select(); else location.assign('/');
  }
  const down = key === 'ArrowDown';
  if (!down && key !== 'ArrowUp' || field && !['search', 'checkbox'].includes(field.type)) return;
  const links = [...document.querySelectorAll('.results h2 a, .recent > li > a, tbody a[data-source]')].filter(each => each.checkVisibility());
  const found = links.filter(each => target.compareDocumentPosition(each) & (down ? Node.DOCUMENT_POSITION_FOLLOWING : Node.DOCUMENT_POSITION_PRECEDING));
  const next = down ? found[0] : found.at(-1) || links.includes(target) && search;
  if (!next) return;
  event.preventDefault();
  next.focus();
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
