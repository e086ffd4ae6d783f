// The order of search results. A section of the reference that is named like what is searched for, an option or an error
// code, comes before the pages that mention it. The numbers are Sphinx's own.
var Scorer = {
  score: ([page, title, anchor, , score, , kind]) => {
    const isName = page.startsWith("reference/") && anchor && !/\s/.test(title.split(" > ").at(-1));
    return isName && kind === "title" ? score * 10 : score;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
