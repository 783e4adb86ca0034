/** Which tab is shown and where links lead. Keys and scrolling are covered by tests/web in a real browser. */
import {
  createMemoryHistory,
  createRootRoute,
  createRoute,
  createRouter,
  Outlet,
  RouterProvider,
} from "@tanstack/react-router";
import type { ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { describe, expect, it } from "vitest";
import { BackToWelcome } from "./back-to-welcome";
import { SideTabs } from "./side-tabs";
import { type Tab, TabBar } from "./tabs";

/** Return the opening tag of each element with this name or role, by its text. */
function tagsOf(html: string, kind: RegExp): Record<string, string> {
  const found = html.matchAll(new RegExp(`(<${kind.source}[^>]*>)(.*?)</(?:a|button)>`, "g"));
  return Object.fromEntries([...found].map(([, tag = "", text = ""]) => [text.replace(/<[^>]*>/g, "").trim(), tag]));
}

describe("TabBar", () => {
  const show = (tabs: Tab[], value: string, aside?: ReactNode) =>
    renderToStaticMarkup(
      <TabBar tabs={tabs} value={value} label="Workspace" onChange={() => undefined} aside={aside}>
        the panel
      </TabBar>,
    );
  const tabs = [
    { id: "output", label: "Output" },
    { id: "files", label: "Files" },
  ];

  it("is a named list of tabs, of which one is selected", () => {
    const html = show(tabs, "files");
    expect(html).toMatch(/<div role="tablist"[^>]* aria-label="Workspace"/);
    const found = tagsOf(html, /button[^>]*role="tab"/);
    expect(Object.keys(found)).toEqual(["Output", "Files"]);
    expect(found.Files).toContain('aria-selected="true"');
    expect(found.Output).toContain('aria-selected="false"');
  });

  it("shows one panel, named after the selected tab and controlled by it", () => {
    const html = show(tabs, "files");
    const panels = [...html.matchAll(/<div[^>]*role="tabpanel"[^>]*>([^<]*)/g)];
    expect(panels.map(([, text]) => text)).toEqual(["the panel"]);
    const panel = panels[0]?.[0] ?? "";
    const tab = tagsOf(html, /button[^>]*role="tab"/).Files ?? "";
    const attribute = (tag: string, name: string) => new RegExp(` ${name}="([^"]+)"`).exec(tag)?.[1];
    expect(attribute(panel, "aria-labelledby")).toBe(attribute(tab, "id"));
    expect(attribute(tab, "aria-controls")).toBe(attribute(panel, "id"));
  });

  it("shows a count of 0, but nothing in place of a count that is not known", () => {
    const html = show(
      [
        { id: "attempts", label: "Attempts", note: 0 },
        { id: "files", label: "Files", note: undefined },
        { id: "history", label: "History", note: null },
      ],
      "files",
    );
    expect(html).toMatch(/>Attempts<span[^>]*>0<\/span><\/button>/);
    expect(html).toMatch(/>Files<\/button>/);
    expect(html).toMatch(/>History<\/button>/);
  });

  it("keeps what is beside the tabs out of the list of tabs", () => {
    expect(show(tabs, "files", <i>aside</i>)).toMatch(/Files<\/button><\/div><div[^>]*><i>aside<\/i>/);
    expect(show(tabs, "files", false)).toMatch(/Files<\/button><\/div><\/div><div[^>]*role="tabpanel"/);
  });
});

/** Render a node at an address. */
async function visit(address: string, node: ReactNode): Promise<string> {
  const root = createRootRoute({ component: Outlet });
  const page = (path: string) => createRoute({ getParentRoute: () => root, path, component: () => node });
  const router = createRouter({
    routeTree: root.addChildren([page("/settings"), page("/welcome")]),
    history: createMemoryHistory({ initialEntries: [address] }),
  });
  await router.load();
  return renderToStaticMarkup(<RouterProvider router={router as never} />);
}

const hrefOf = (tag: string | undefined) => / href="([^"]*)"/.exec(tag ?? "")?.[1]?.replaceAll("&amp;", "&");

describe("SideTabs", () => {
  const show = (address: string, value: string) =>
    visit(
      address,
      <SideTabs
        tabs={[
          { id: "profile", label: "Profile" },
          { id: "people", label: "People" },
        ]}
        value={value}
        label="Settings"
      >
        the content
      </SideTabs>,
    );

  it("is a named navigation whose current link is the shown tab, even if the URL has no tab", async () => {
    for (const address of ["/settings", "/settings?tab=profile"]) {
      const html = await show(address, "profile");
      expect(html).toMatch(/<nav aria-label="Settings"/);
      const links = tagsOf(html, /a /);
      expect(Object.keys(links)).toEqual(["Profile", "People"]);
      expect(links.Profile).toContain('aria-current="page"');
      expect(links.People).not.toContain("aria-current");
      expect(html).toContain("the content");
    }
  });

  it("gives each tab a URL of its own that keeps the rest of the address", async () => {
    const links = tagsOf(await show("/settings?tab=profile&from=welcome", "profile"), /a /);
    const people = new URL(hrefOf(links.People) ?? "", "http://localhost");
    expect(people.pathname).toBe("/settings");
    expect(Object.fromEntries(people.searchParams)).toEqual({ tab: "people", from: "welcome" });
  });
});

describe("BackToWelcome", () => {
  it("leads to the welcome page, and to the project that the user set up there", async () => {
    const plain = tagsOf(await visit("/settings?from=welcome", <BackToWelcome />), /a /);
    expect(hrefOf(plain["Back to Welcome"])).toBe("/welcome");
    const ofProject = tagsOf(await visit("/settings?from=welcome", <BackToWelcome project="prj_1" />), /a /);
    expect(hrefOf(ofProject["Back to Welcome"])).toBe("/welcome?project=prj_1");
  });
});
