/** Dialogs and menus. Radix sets aria-labelledby and moves the focus in effects: tests/web finds dialogs by name in a real browser. */
import type { ComponentProps, KeyboardEvent, MouseEvent, ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { beforeEach, describe, expect, it, vi } from "vitest";

const stubs = vi.hoisted(() => ({
  buttons: new Map<string, ComponentProps<"button">>(),
  openAutoFocus: (_: object) => undefined as unknown,
}));
vi.mock("react", async (original) => ({
  ...(await original<object>()),
  ...(await import("./static-hooks")).hooks,
}));
vi.mock("radix-ui", async (original) => {
  const real = await original<typeof import("radix-ui")>();
  const Portal = ({ children }: { children?: ReactNode }) => children; // there is no document to render into
  const Content = (props: ComponentProps<typeof real.Dialog.Content>) => {
    stubs.openAutoFocus = props.onOpenAutoFocus as typeof stubs.openAutoFocus;
    return <real.Dialog.Content {...props} />;
  };
  return {
    ...real,
    AlertDialog: { ...real.AlertDialog, Portal },
    Dialog: { ...real.Dialog, Portal, Content },
    DropdownMenu: { ...real.DropdownMenu, Portal },
    Popover: { ...real.Popover, Portal },
  };
});
vi.mock("./button", async (original) => {
  const real = await original<typeof import("./button")>();
  const Button: typeof real.Button = (props) => {
    stubs.buttons.set(renderToStaticMarkup(props.children), props);
    return <real.Button {...props} />;
  };
  const IconButton: typeof real.IconButton = (props) => {
    stubs.buttons.set(props.label, props);
    return <real.IconButton {...props} />;
  };
  return { ...real, Button, IconButton };
});

import { Tooltip } from "radix-ui";
import { Button, IconButton } from "./button";
import { Confirm, Dialog, Sheet } from "./dialog";
import { Menu, MenuItem, MenuLine, MenuTitle, Popover } from "./menu";
import { renderAgain, renderFirst } from "./static-hooks";

const inside = (node: ReactNode) => <Tooltip.Provider>{node}</Tooltip.Provider>;
const show = (node: ReactNode) => renderFirst(inside(node));
const showAgain = (node: ReactNode) => renderAgain(inside(node));

/** Return the properties of a button of the last render. */
function find(name: string): ComponentProps<"button"> {
  const found = stubs.buttons.get(name);
  expect(found, `a button ${name} among ${[...stubs.buttons.keys()].join(", ")}`).toBeDefined();
  return found ?? {};
}

async function press(name: string): Promise<void> {
  find(name).onClick?.({} as MouseEvent<HTMLButtonElement>);
  await new Promise((resolve) => setTimeout(resolve)); // what it starts and need not wait for is done then
}

const buttonNamed = (html: string, name: string) =>
  [...html.matchAll(/(<button[^>]*>)(.*?)<\/button>/g)].find(([, , text = ""]) => text.endsWith(name))?.[1];

beforeEach(() => stubs.buttons.clear());

describe.each([
  ["Dialog", Dialog],
  ["Sheet", Sheet],
])("%s", (_, Panel) => {
  const panel = (props: Partial<Parameters<typeof Panel>[0]>) => (
    <Panel open onOpenChange={() => undefined} title="New task" {...props}>
      {props.children ?? "fields"}
    </Panel>
  );

  it("shows nothing while it is closed", () => {
    expect(show(panel({ open: false }))).toBe("");
  });

  it("is headed by its title and can be closed", () => {
    const html = show(panel({ children: <b>the form</b> }));
    expect(html).toMatch(/role="dialog".*<h2[^>]*>New task<\/h2>.*aria-label="Close".*<b>the form<\/b>/);
  });

  it("shows a description and a footer only if it has them", () => {
    const full = show(panel({ description: "It starts at once.", footer: <i>actions</i> }));
    expect(full).toMatch(/New task<\/h2><p[^>]*>It starts at once\.<\/p>.*fields.*<i>actions<\/i>/);
    const plain = show(panel({}));
    expect(plain).not.toMatch(/<p[ >]/);
    expect(plain).toMatch(/fields<\/div><\/div>$/);
  });

  it("focuses itself when it opens, and not its first button", () => {
    show(panel({}));
    const event = { preventDefault: vi.fn(), currentTarget: { focus: vi.fn() } };
    stubs.openAutoFocus(event);
    expect(event.preventDefault).toHaveBeenCalledOnce();
    expect(event.currentTarget.focus).toHaveBeenCalledOnce();
  });
});

describe("Confirm", () => {
  const question = (onConfirm: () => unknown, props: Partial<Parameters<typeof Confirm>[0]> = {}) => (
    <Confirm
      trigger={<Button>Delete…</Button>}
      title="Delete the project?"
      action="Delete"
      onConfirm={onConfirm}
      {...props}
    >
      Its tasks are lost.
    </Confirm>
  );

  it("is closed until its trigger is pressed, and asks before it acts", async () => {
    const act = vi.fn();
    const closed = show(question(act));
    expect(closed).not.toContain("alertdialog");
    expect(buttonNamed(closed, "Delete…")).toContain('aria-expanded="false"');
    await press("Delete…");
    const open = showAgain(question(act));
    expect(open).toMatch(/role="alertdialog".*<h2[^>]*>Delete the project\?<\/h2>.*Its tasks are lost\./);
    expect(open).toMatch(/>Cancel<\/button>.*>Delete<\/button>/);
    expect(act).not.toHaveBeenCalled();
  });

  it("closes without acting if it is cancelled", async () => {
    const act = vi.fn();
    show(question(act));
    await press("Delete…");
    showAgain(question(act));
    await press("Cancel");
    expect(showAgain(question(act))).not.toContain("alertdialog");
    expect(act).not.toHaveBeenCalled();
  });

  it("stays open and busy until the action is done", async () => {
    let finish: () => void = () => undefined;
    const act = vi.fn(
      () =>
        new Promise<void>((resolve) => {
          finish = resolve;
        }),
    );
    show(question(act));
    await press("Delete…");
    expect(buttonNamed(showAgain(question(act)), "Delete")).not.toContain("aria-busy");
    await press("Delete");
    const busy = buttonNamed(showAgain(question(act)), "Delete");
    expect(busy).toContain('aria-busy="true"');
    expect(busy).toContain('disabled=""');
    finish();
    await new Promise((resolve) => setTimeout(resolve));
    expect(showAgain(question(act))).not.toContain("alertdialog");
    expect(act).toHaveBeenCalledOnce();
  });

  it("stays open if the action fails, so that it can be tried again", async () => {
    const act = () => Promise.reject(new Error("The database is full."));
    show(question(act));
    await press("Delete…");
    showAgain(question(act));
    await press("Delete");
    const html = showAgain(question(act));
    expect(html).toContain("alertdialog");
    expect(buttonNamed(html, "Delete")).not.toContain("aria-busy");
  });

  it("tells the one who opened it when it is done", async () => {
    const changed = vi.fn();
    show(question(() => undefined, { trigger: undefined, open: true, onOpenChange: changed }));
    await press("Delete");
    expect(changed.mock.calls).toEqual([[false]]);
  });
});

describe("Menu", () => {
  const trigger = (
    <IconButton label="More actions">
      <i />
    </IconButton>
  );
  const items = (
    <>
      <MenuTitle>Task</MenuTitle>
      <MenuItem>Rename</MenuItem>
      <MenuLine />
      <MenuItem disabled>Retry</MenuItem>
      <MenuItem danger>Delete</MenuItem>
    </>
  );
  const itemNamed = (html: string, name: string) =>
    [...html.matchAll(/(<div role="menuitem"[^>]*>)([^<]*)/g)].find(([, , text]) => text === name)?.[1];

  it("is announced by its trigger, and shows nothing else while it is closed", () => {
    const html = show(<Menu trigger={trigger}>{items}</Menu>);
    expect(html).toMatch(/^<button[^>]*><i><\/i><\/button>$/);
    expect(html).toContain('aria-label="More actions"');
    expect(html).toContain('aria-haspopup="menu"');
    expect(html).toContain('aria-expanded="false"');
  });

  it("is named by its trigger and contains items only", () => {
    const html = show(
      <Menu open trigger={trigger}>
        {items}
      </Menu>,
    );
    expect(html).toContain('aria-expanded="true"');
    const id = /<button[^>]* id="([^"]+)"/.exec(html)?.[1];
    expect(id).toBeTruthy();
    expect(/<div[^>]*role="menu"[^>]*>/.exec(html)?.[0]).toContain(`aria-labelledby="${id}"`);
    expect([...html.matchAll(/role="(menuitem|separator)"/g)].map(([, role]) => role)).toEqual([
      "menuitem",
      "separator",
      "menuitem",
      "menuitem",
    ]);
    expect(html).toMatch(/<div(?![^>]*role=)[^>]*>Task<\/div>/);
  });

  it("marks items that cannot be chosen, and those that delete something", () => {
    const html = show(
      <Menu open trigger={trigger}>
        {items}
      </Menu>,
    );
    expect(itemNamed(html, "Retry")).toContain('aria-disabled="true"');
    expect(itemNamed(html, "Rename")).not.toContain("aria-disabled");
    expect(itemNamed(html, "Delete")).toContain("text-bad");
    expect(itemNamed(html, "Rename")).not.toContain("text-bad");
  });

  it.each(["Enter", " ", "ArrowDown"])("asks to be opened if %j is pressed on its trigger", (key) => {
    const changed = vi.fn();
    show(
      <Menu open={false} onOpenChange={changed} trigger={trigger}>
        {items}
      </Menu>,
    );
    find("More actions").onKeyDown?.({ key, preventDefault: () => undefined } as KeyboardEvent<HTMLButtonElement>);
    expect(changed.mock.calls).toEqual([[true]]);
  });
});

describe("Popover", () => {
  it("is a named dialog while it is open, and nothing while it is closed", () => {
    const popover = (open: boolean) => (
      <Popover label="Filters" open={open} trigger={<Button>Filter</Button>}>
        the filters
      </Popover>
    );
    const open = show(popover(true));
    expect(/<div[^>]*role="dialog"[^>]*>/.exec(open)?.[0]).toContain('aria-label="Filters"');
    expect(open).toContain("the filters");
    const closed = show(popover(false));
    expect(closed).not.toContain("the filters");
    expect(buttonNamed(closed, "Filter")).toContain('aria-expanded="false"');
  });
});
