const live = document.getElementById('live'), pulse = document.getElementById('pulse');
async function look() {
  try {
    const answer = await fetch('/live?namespace=' + encodeURIComponent(live.dataset.namespace));
    if (!answer.ok) throw new Error(answer.status);
    const html = await answer.text();
    if (!live.contains(document.activeElement)) live.innerHTML = html;
    pulse.textContent = 'live'; pulse.className = 'good';
  } catch (error) { pulse.textContent = 'not reachable'; pulse.className = 'bad'; }
  setTimeout(look, 1000);
}
look();
