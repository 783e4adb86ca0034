/** What Markdown from agents and from people on a pull request may show. */
import { Tooltip } from "radix-ui";
import { renderToStaticMarkup } from "react-dom/server";
import { describe, expect, it, vi } from "vitest";

const shown = vi.hoisted(() => {
  vi.stubGlobal("location", { origin: "http://localhost" }); // links are resolved against it
  return { language: "" as string | undefined };
});
vi.mock("./code", async (original) => {
  const real = await original<typeof import("./code")>();
  const Code: typeof real.Code = (props) => {
    shown.language = props.language;
    return <real.Code {...props} />;
  };
  return { ...real, Code };
});

import { Remarks } from "@/features/pulls/remarks";
import { Markdown, MarkdownBudget } from "./markdown";
import Rendered from "./markdown-rendered";

const render = (text: string) =>
  renderToStaticMarkup(
    <Tooltip.Provider>
      <Rendered text={text} />
    </Tooltip.Provider>,
  );
const textOf = (html: string) => html.replace(/<[^>]*>/g, "").trim();
const hrefsOf = (html: string) => [...html.matchAll(/<a[^>]* href="([^"]*)"/g)].map(([, href]) => href);

it("shows the text as written until the renderer is loaded", async () => {
  const show = () =>
    renderToStaticMarkup(
      <Tooltip.Provider>
        <Markdown text="**bold** <b>" />
      </Tooltip.Provider>,
    );
  expect(textOf(show())).toBe("**bold** &lt;b&gt;");
  await vi.waitFor(() => expect(show()).toContain("<strong>bold</strong>"), { interval: 5 });
});

it("shows a text that would freeze the page as written, with the reason", () => {
  const html = renderToStaticMarkup(<Markdown text={`**bold** ${"*a_ ".repeat(2_000)}`} />);
  expect(html).toContain("Shown without formatting");
  expect(html).toContain("**bold** *a_ ");
});

it("shows a page of 100 hostile remarks as written, with a button for those that can be formatted", () => {
  const show = (text: string) => {
    const remarks = Array.from({ length: 100 }, (_, index) => ({
      kind: "comment",
      id: String(index),
      author: "eve",
      text: `${index}\n\n${text}`,
      at: "2026-01-01T00:00:00Z",
      state: null,
      path: null,
      line: null,
      url: null,
    }));
    return renderToStaticMarkup(
      <Tooltip.Provider>
        <MarkdownBudget texts={remarks.map((remark) => remark.text)}>
          <Remarks remarks={remarks} />
        </MarkdownBudget>
      </Tooltip.Provider>,
    );
  };
  const count = (html: string, words: string) => html.split(words).length - 1;
  expect(count(show(`${"- ".repeat(30)}a\n`.repeat(320)), "the text is too long or too complex")).toBe(100);
  const several = show(`${"- ".repeat(5)}a\n`.repeat(250));
  expect(count(several, "this page has many complex texts")).toBeGreaterThanOrEqual(98);
  expect(count(several, "Format</button>")).toBeGreaterThanOrEqual(98);
  expect(count(show("**a**"), "Shown without formatting")).toBe(0);
});

it("shows nothing for an empty text", () => {
  expect(textOf(render(""))).toBe("");
});

describe("text", () => {
  it("has headings, emphasis, lists and tables", () => {
    const html = render("# Plan\n\n**now** and ~~never~~\n\n- [x] done\n- [ ] open\n\n| a | b |\n|---|---|\n| 1 | 2 |");
    expect(html).toMatch(/<h1>Plan<\/h1>.*<strong>now<\/strong> and <del>never<\/del>/s);
    expect(html).toMatch(
      /<li[^>]*><input[^>]* checked=""[^>]*> done<\/li>\s*<li[^>]*><input(?![^>]*checked)[^>]*> open/,
    );
    expect(html).toMatch(/<th>b<\/th>.*<td>2<\/td>/s);
  });

  it.each([
    "calc/__init__.py is empty",
    "from calc/__init__.py to calc/__main__.py",
    "PATH=~/bin:~/.local/bin",
    "5~10 files in 10~20 s",
    "src/**/*.py and tests/**/*.py",
  ])("%s is shown as written", (text) => {
    expect(render(text)).toContain(`<p>${text}</p>`);
  });

  it("has no elements of its own: HTML is dropped", () => {
    const html = render(
      'Hi <img src=x onerror="own()"> <b onclick="own()">you</b>\n\n<script>own()</script>\n\n<!-- no -->',
    );
    expect(textOf(html).split(/\s+/)).toEqual(["Hi", "you"]);
    expect(html).not.toMatch(/<(img|b|script)\b|own\(\)/);
  });

  it("shows escaped characters, and HTML in code, as text", () => {
    expect(render("1 &lt; 2 \\*not soft\\*")).toContain("<p>1 &lt; 2 *not soft*</p>");
    expect(render("`<img src=x>`")).toMatch(/<code[^>]*>&lt;img src=x&gt;<\/code>/);
    expect(render("```html\n<script>own()</script>\n```")).toContain("&lt;script&gt;own()&lt;/script&gt;");
  });
});

describe("links", () => {
  it("open in a new tab that has no access to this one", () => {
    const html = render("[docs](https://example.org/?a=1&b=2)");
    expect(hrefsOf(html)).toEqual(["https://example.org/?a=1&amp;b=2"]);
    expect(html).toMatch(/<a[^>]* target="_blank" rel="noreferrer noopener nofollow"[^>]*>docs<\/a>/);
  });

  it("are made of addresses in the text, and may be e-mail addresses or pages of the platform", () => {
    expect(hrefsOf(render("see https://example.org/a_b_c, www.example.org"))).toEqual([
      "https://example.org/a_b_c",
      "http://www.example.org/",
    ]);
    expect(hrefsOf(render("[mail](mailto:a@example.org)"))).toEqual(["mailto:a@example.org"]);
    expect(hrefsOf(render("[help](/help?tab=agents)"))).toEqual(["http://localhost/help?tab=agents"]);
  });

  it.each([
    "javascript:own()",
    "JavaScript:own()",
    "&#106;avascript:own()",
    "<java\tscript:own()>",
    "<\u0001javascript:own()>",
    "data:text/html,own()",
    "vbscript:own()",
    "file:///etc/passwd",
    "irc://example.org/own",
    "xmpp:own@example.org",
    "http://[",
    "",
  ])("to %j are text", (target) => {
    const html = render(`[click](${target})`);
    expect(html).toContain("<span>click</span>");
    expect(html).not.toMatch(/<a\b/);
  });

  it.each(["src/app.py", "./README.md#usage", "../docs", "#usage", "?tab=files"])(
    "to %s are text, because files of the repository have no address here",
    (target) => {
      const html = render(`[click](${target})`);
      expect(textOf(html)).toBe("click");
      expect(hrefsOf(html)).toEqual([]);
    },
  );

  it("replace images, so that nothing is loaded from their address", () => {
    const html = render("![a chart](https://example.org/a.png) ![](https://example.org/b.png)");
    expect(html).not.toContain("<img");
    expect(hrefsOf(html)).toEqual(["https://example.org/a.png", "https://example.org/b.png"]);
    expect(textOf(html)).toBe("a chart image");
    const inert = render("![a pixel](data:image/png;base64,AA)");
    expect(hrefsOf(inert)).toEqual([]);
    expect(textOf(inert)).toBe("a pixel");
    expect(textOf(render("![](docs/chart.png)"))).toBe("image");
  });
});

describe("code", () => {
  it("keeps the spaces of inline code", () => {
    expect(render('`count("two  words")`')).toMatch(
      /<code class="[^"]*whitespace-pre-wrap[^"]*">count\(&quot;two {2}words/,
    );
  });

  it("is shown as written, in the line or as a block that can be copied", () => {
    const html = render("Run `calc/__init__.py` **now**:\n\n```sh\nrm *.py; echo **x** # [a](b)\n```");
    expect(html).toMatch(/Run <code[^>]*>calc\/__init__\.py<\/code> <strong>now/);
    expect(html).toMatch(/aria-label="Copy".*<pre[^>]*><code>rm \*\.py; echo \*\*x\*\* # \[a\]\(b\)<\/code><\/pre>/s);
  });

  it.each(["```\nls\n```", "    ls", "```sh\nls"])("%j is a block", (text) => {
    expect(render(text)).toMatch(/<pre[^>]*><code>ls<\/code><\/pre>/);
  });

  it.each([
    ["python", "python"],
    ["c++", "c++"],
    ["c#", "c#"],
    ["rust,ignore", "rust"],
    ["", undefined],
  ])("marked as %j is highlighted as %s", (mark, language) => {
    render(`\`\`\`${mark}\nx = 1\n\`\`\``);
    expect(shown.language).toBe(language);
  });

  it("may be an empty block, as while it is being written", () => {
    expect(render("```\n```")).toMatch(/<pre[^>]*><code><\/code><\/pre>/);
    expect(render("```")).toMatch(/<pre[^>]*><code><\/code><\/pre>/);
  });
});
