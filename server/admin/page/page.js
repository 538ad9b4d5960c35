// The page is whole without this: it only fetches the live part again every two seconds, and fades it when it can't.
(function () {
  const live = document.getElementById('live');
  async function refresh() {
    if (!document.hidden) {
      try {
        const r = await fetch('/live', { cache: 'no-store' });
        if (!r.ok) throw new Error(r.status);
        live.innerHTML = await r.text();
        live.classList.remove('stale');
      } catch (e) {
        live.classList.add('stale');
      }
    }
    setTimeout(refresh, 2000);
  }
  setTimeout(refresh, 2000);
})();
