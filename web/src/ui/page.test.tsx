import { expect, it, vi } from "vitest";

vi.mock("react", async (original) => ({
  ...(await original<object>()),
  ...(await import("./static-hooks")).hooks,
}));

import { Page, Section, useTitle } from "./page";
import { renderAgain, renderFirst } from "./static-hooks";

it("a page has one main heading, its actions and its content", () => {
  vi.stubGlobal("document", { title: "" });
  const html = renderFirst(
    <Page title="Agents & models" actions={<a href="/add">Add</a>}>
      <p>Two agents</p>
    </Page>,
  );
  expect(html.match(/<h1[^>]*>(.*?)<\/h1>/g)).toHaveLength(1);
  expect(html).toMatch(/<h1[^>]*>Agents &amp; models<\/h1><a href="\/add">Add<\/a><\/div><p>Two agents/);
});

it("the browser tab has the title of the page, and follows it", () => {
  vi.stubGlobal("document", { title: "" });
  renderFirst(<Page title="Projects">{null}</Page>);
  expect(document.title).toBe("Projects · Sandyard");
  renderAgain(<Page title="Shop">{null}</Page>);
  expect(document.title).toBe("Shop · Sandyard");
});

it("the browser tab has the name of the product while the title is not known", () => {
  const Task = ({ title }: { title?: string }) => {
    useTitle(title);
    return null;
  };
  vi.stubGlobal("document", { title: "Board · Sandyard" });
  renderFirst(<Task />);
  expect(document.title).toBe("Sandyard");
  renderAgain(<Task title="Fix the login" />);
  expect(document.title).toBe("Fix the login · Sandyard");
});

it("a section is headed one level below the page, and its description is optional", () => {
  const described = renderFirst(
    <Section title="Budget" description="Per month, in USD." actions={<a href="/edit">Edit</a>}>
      rows
    </Section>,
  );
  expect(described).toMatch(/<section[^>]*>.*<h2[^>]*>Budget<\/h2><p[^>]*>Per month, in USD\.<\/p>.*Edit.*rows/);
  expect(renderFirst(<Section title="Budget">rows</Section>)).not.toMatch(/<p[ >]/);
});
