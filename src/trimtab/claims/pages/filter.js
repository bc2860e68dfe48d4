
const form = document.querySelector("form.filters");
const claims = [...document.querySelectorAll("details.claim")];
const words = claims.map(claim => claim.textContent.toLowerCase());
function filter() {
  const wanted = new FormData(form), text = wanted.get("text").trim().toLowerCase();
  const fits = (claim, i) => ["verdict", "paper", "kind"].every(
    name => !wanted.get(name) || claim.dataset[name] === wanted.get(name)) && words[i].includes(text);
  claims.forEach((claim, i) => { claim.hidden = !fits(claim, i); });
  for (const part of document.querySelectorAll("section.block, section.group"))
    part.hidden = !part.querySelector("details.claim:not([hidden])");
  const shown = claims.filter(claim => !claim.hidden).length;
  form.querySelector("output").textContent = `${shown} of ${claims.length} claims`;
}
function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named && named.matches("details")) { named.open = true; named.scrollIntoView(); }
}
form.hidden = false;
form.addEventListener("submit", event => event.preventDefault());
form.addEventListener("input", event => {
  if (event.target.name === "open") for (const claim of claims) claim.open = event.target.checked;
  else filter();
});
addEventListener("hashchange", openNamed);
filter();
openNamed();
