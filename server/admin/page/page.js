// The page is whole without this: it only fetches the live part again every two seconds, and fades it when it can't.
(function () {
  const live = document.getElementById('live');
  const every = 2000;
  async function refresh() {
    // A hidden page costs nothing, and a selection is not taken away from who is about to copy it.
    if (!document.hidden && getSelection().isCollapsed) {
      try {
        const r = await fetch('/live', { cache: 'no-store', signal: AbortSignal.timeout(5 * every) });
        if (!r.ok) throw new Error(r.status);
        live.innerHTML = await r.text();
        live.classList.remove('stale');
        document.title = 'Redleaf: ' + document.getElementById('state').textContent;
      } catch (e) {
        live.classList.add('stale');
        document.title = 'Redleaf: no answer';
      }
    }
    setTimeout(refresh, every);
  }
  setTimeout(refresh, every);
})();
