"use strict";
/* The choice of a version, out of the versions.json beside the versions' folders. Without it, or from a file, the page
   only says which version it is of. */
{
  const choice = document.getElementById("version-choice");
  const root = new URL(choice.dataset.root, location.href);
  const here = choice.dataset.version;
  const page = choice.dataset.page;

  const open = async (version) => {
    const wanted = new URL(`../${version}/${page}`, root);
    const found = (await fetch(wanted, {method: "HEAD"})).ok; // a page may be of one version only
    location.href = found ? wanted.href : new URL(`../${version}/index.html`, root).href;
  };

  const offer = ({latest, versions}) => {
    for (const version of versions) {
      const text = version === latest ? `${version} (latest)` : version;
      choice.add(new Option(text, version, false, version === here));
    }
    choice.hidden = versions.length < 2;
    choice.addEventListener("change", () => open(choice.value));
    if (here !== latest) {
      const note = document.createElement("p");
      note.className = "old-version";
      note.append(`This is version ${here}; the latest is `);
      const link = document.createElement("a");
      link.href = new URL(`../${latest}/index.html`, root).href;
      link.textContent = latest;
      note.append(link, ".");
      document.querySelector("article").prepend(note);
    }
  };

  if (location.protocol.startsWith("http")) {
    fetch(new URL("../versions.json", root))
      .then((response) => response.ok ? response.json() : {latest: here, versions: [here]})
      .then(offer);
  }
}
/* All error codes once had their sections on one page: its links, errors.html#spool-in-use, lead to the sections of today. */
if (document.getElementById("version-choice").dataset.page === "reference/errors.html") {
  const plain = (text) => text.toLowerCase().replace(/[^a-z0-9]/g, "");
  const forward = () => {
    const codes = [...document.querySelectorAll('article a[href^="errors/"] code')];
    const found = codes.find((code) => plain(code.textContent) === plain(location.hash));
    if (found) location.replace(found.closest("a").href);
  };
  addEventListener("hashchange", forward);
  forward();
}
