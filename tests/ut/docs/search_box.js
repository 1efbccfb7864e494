// SPDX-License-Identifier: Apache-2.0
// Types words into a site's search box and reads what is shown. kaleido runs this in Chromium as if it
// were plotly: it calls `toImage` with the first line of its standard input, and prints the answer.

const PATIENCE_MS = 60_000;

/** Wait until something holds, as a reader waits for what is shown. */
async function until(holds, what) {
  const start = performance.now();
  while (!holds()) {
    if (performance.now() - start > PATIENCE_MS) throw new Error(`waited in vain for ${what}`);
    await new Promise(requestAnimationFrame);
  }
}

/** Load a page, and return the window it is in. */
async function open(url) {
  const frame = Object.assign(document.createElement("iframe"), {src: url, width: 1200, height: 800});
  const loaded = new Promise(resolve => frame.addEventListener("load", resolve));
  document.body.append(frame);
  await loaded;
  return frame.contentWindow;
}

class SearchBox {
  constructor(page) {
    const find = selector => page.document.querySelector(selector);
    this.page = page;
    this.box = find("[data-md-component=search-query]");
    this.told = find(".md-search-result__meta");
    this.results = find(".md-search-result__list");
    this.scrolled = find(".md-search__scrollwrap");
    this.invitation = JSON.parse(find("#__config").textContent).translations["search.result.placeholder"];
  }

  type(text) {
    this.box.focus();
    this.box.value = text;
    this.box.dispatchEvent(new this.page.KeyboardEvent("keyup", {bubbles: true}));
  }

  /** Return the files of the pages found, as they stand in the list. It grows when it is scrolled. */
  async search(word) {
    const waits = () => this.told.textContent === this.invitation;
    this.type("");
    await until(waits, "an empty box");
    this.type(word);
    await until(() => !waits(), `an answer to ${word}`);
    const shown = this.results.children;
    const expected = parseInt(this.told.textContent) || 0;
    let down = false;
    await until(() => {
      // More is shown when the end comes into sight once more.
      this.scrolled.scrollTop = (down = !down) ? this.scrolled.scrollHeight : 0;
      return shown.length === expected;
    }, `${this.told.textContent} to ${word}`);
    return Array.from(shown, page => page.querySelector("a").pathname.slice(1));
  }
}

async function found({url, words}) {
  const box = new SearchBox(await open(url));
  const answers = [];
  for (const word of words) answers.push(await box.search(word));
  return answers;
}

window.Plotly = {
  version: "2.0.0",
  toImage: figure => found(figure.data[0]).then(JSON.stringify),
};
