/** Drafts and forms. The focus and the beforeunload event are covered by tests/web in a real browser. */
import type { ComponentProps, FormEvent } from "react";
import { beforeEach, describe, expect, it, vi } from "vitest";

const stubs = vi.hoisted(() => {
  vi.stubGlobal("location", { origin: "http://localhost" }); // read by the API client
  vi.stubGlobal("document", { activeElement: null });
  return {
    blocker: { status: "idle", reset: vi.fn(), proceed: vi.fn() },
    blocks: (): boolean => false,
    confirm: {} as { onOpenChange?: (open: boolean) => void; onConfirm?: () => unknown },
  };
});
vi.mock("react", async (original) => ({
  ...(await original<object>()),
  ...(await import("./static-hooks")).hooks,
}));
vi.mock("@tanstack/react-router", async (original) => ({
  ...(await original<object>()),
  useBlocker: (options: { shouldBlockFn: () => boolean }) => {
    stubs.blocks = options.shouldBlockFn;
    return stubs.blocker;
  },
}));
vi.mock("./dialog", () => ({
  Confirm: (props: ComponentProps<typeof import("./dialog").Confirm>) => {
    stubs.confirm = props as typeof stubs.confirm;
    return props.open ? <div role="alertdialog">{props.title}</div> : null;
  },
}));

import { type Draft, Form, LeaveGuard, SubmitForm, useDraft } from "./form";
import { renderAgain, renderFirst } from "./static-hooks";

describe("useDraft", () => {
  type Settings = { name: string; model: string };
  let draft: Draft<Settings>;

  function Editor({ stored }: { stored: Settings }) {
    draft = useDraft(stored);
    return null;
  }
  const show = (stored: Settings) => {
    renderAgain(<Editor stored={stored} />);
    renderAgain(<Editor stored={stored} />); // with what the effects have changed
  };
  const stored = { name: "shop", model: "small" };
  beforeEach(() => {
    renderFirst(<Editor stored={stored} />);
  });

  it("is dirty while it differs from the stored value", () => {
    expect(draft).toMatchObject({ value: stored, dirty: false });
    draft.set({ name: "store" });
    show(stored);
    expect(draft).toMatchObject({ value: { name: "store", model: "small" }, dirty: true });
    draft.set({ name: "shop" });
    show(stored);
    expect(draft.dirty).toBe(false);
  });

  it("is reset to the stored value", () => {
    draft.set({ name: "store" });
    show(stored);
    draft.reset();
    show(stored);
    expect(draft).toMatchObject({ value: stored, dirty: false });
  });

  it("takes over what others save, except in fields changed here", () => {
    draft.set({ name: "store" });
    show(stored);
    show({ name: "market", model: "large" });
    expect(draft).toMatchObject({ value: { name: "store", model: "large" }, dirty: true });
  });

  it("is not dirty after it was saved and the new value is stored", () => {
    draft.set({ name: "store" });
    show(stored);
    const saved = { name: "store", model: "small" };
    draft.replace(saved);
    show(saved);
    expect(draft).toMatchObject({ value: saved, dirty: false });
  });
});

describe("Form", () => {
  type Props = Omit<ComponentProps<typeof Form>, "children" | "draft"> & { dirty: boolean };
  const show = ({ dirty, ...props }: Partial<Props>) =>
    renderFirst(
      <Form draft={{ dirty: dirty ?? false, reset: () => undefined }} onSave={() => undefined} busy={false} {...props}>
        <input name="name" />
      </Form>,
    );

  it("offers Save and Cancel only if something has changed", () => {
    expect(show({})).not.toContain("<button");
    expect(show({ dirty: true })).toMatch(/Unsaved changes.*>Cancel<.*type="submit"[^>]*>Save</);
  });

  it("cannot be edited if it is read-only", () => {
    expect(show({ frozen: "Only administrators." })).toContain('<fieldset disabled=""');
    expect(show({})).not.toContain('<fieldset disabled=""');
  });

  it("cannot be sent or cancelled while it is being saved", () => {
    const html = show({ dirty: true, busy: true });
    expect(html.match(/<button[^>]* disabled=""/g)).toHaveLength(2);
    expect(html).toContain('aria-busy="true"');
  });

  it("shows why it was not saved, and offers to save it anyway after a failed test", () => {
    const error = new Error("The database is full.");
    expect(show({ dirty: true, error })).toMatch(/The database is full\./);
    expect(show({ dirty: true, error })).not.toContain("Save without testing");
    const failed = show({ dirty: true, error, onForce: () => undefined });
    expect(failed).toMatch(/The test failed\. Nothing was saved\..*Save without testing/);
  });

  it("guards against leaving with unsaved changes", () => {
    for (const [props, guarded] of [
      [{}, false],
      [{ dirty: true }, true],
      [{ dirty: true, busy: true }, false],
    ] as const) {
      show(props);
      expect(stubs.blocks()).toBe(guarded);
    }
  });
});

describe("LeaveGuard", () => {
  beforeEach(() => vi.clearAllMocks());

  it("asks only when leaving was blocked", () => {
    stubs.blocker.status = "idle";
    expect(renderFirst(<LeaveGuard when />)).toBe("");
    stubs.blocker.status = "blocked";
    expect(renderFirst(<LeaveGuard when />)).toContain("Leave without saving?");
  });

  it("leaves if that is confirmed, and stays otherwise", () => {
    stubs.blocker.status = "blocked";
    renderFirst(<LeaveGuard when />);
    stubs.confirm.onConfirm?.();
    expect(stubs.blocker.proceed).toHaveBeenCalledOnce();
    stubs.confirm.onOpenChange?.(false);
    expect(stubs.blocker.reset).toHaveBeenCalledOnce();
  });
});

describe("SubmitForm", () => {
  const submit = (props: { ready?: boolean; busy: boolean }) => {
    const onSubmit = vi.fn();
    const event = { preventDefault: vi.fn(), stopPropagation: vi.fn() };
    const form = SubmitForm({ submitLabel: "Add", onSubmit, onCancel: () => undefined, children: null, ...props });
    (form.props as ComponentProps<"form">).onSubmit?.(event as unknown as FormEvent<HTMLFormElement> as never);
    expect(event.preventDefault).toHaveBeenCalledOnce();
    expect(event.stopPropagation).toHaveBeenCalledOnce(); // a form that contains the dialog is not submitted
    return onSubmit;
  };

  it("is sent with Enter only if it is ready and not being sent", () => {
    expect(submit({ busy: false })).toHaveBeenCalledOnce();
    expect(submit({ busy: false, ready: false })).not.toHaveBeenCalled();
    expect(submit({ busy: true })).not.toHaveBeenCalled();
  });
});
