/** What the components of the UI kit render. Without a DOM: events and effects are covered by tests/web in a real browser. */
import { Tooltip } from "radix-ui";
import type { ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { describe, expect, it, vi } from "vitest";

vi.hoisted(() => vi.stubGlobal("location", { origin: "http://localhost" })); // read by the API client

import { ApiError } from "@/api/client";
import { Badge, Dot } from "./badge";
import { Button, IconButton } from "./button";
import { Checkbox, Field, FieldNote, Input, Select, Switch } from "./field";
import { FormError, ReadOnlyNote, SubmitForm } from "./form";
import { ListInput, NumberInput, SecretInput, splitLines } from "./inputs";
import { PlainText } from "./plain-text";
import { Sparkline } from "./sparkline";
import { Empty, ErrorState, errorMessage, Loaded, Loading } from "./states";
import { Status } from "./status";
import { Elapsed } from "./time";

const render = (node: ReactNode) => renderToStaticMarkup(<Tooltip.Provider>{node}</Tooltip.Provider>);

describe("Button", () => {
  it("does not submit a form unless its type says so", () => {
    expect(render(<Button>Run</Button>)).toContain('type="button"');
    expect(render(<Button type="submit">Save</Button>)).toContain('type="submit"');
  });

  it("is disabled and shows a spinner while it is busy", () => {
    const html = render(<Button busy>Run</Button>);
    expect(html).toContain('disabled=""');
    expect(html).toContain('aria-busy="true"');
    expect(html).toContain("animate-spin");
    expect(render(<Button>Run</Button>)).not.toContain("aria-busy");
  });

  it("has a name if it shows only an icon", () => {
    expect(render(<IconButton label="Close">x</IconButton>)).toContain('aria-label="Close"');
  });
});

describe("Badge, Dot and Status", () => {
  it("show their tone", () => {
    expect(render(<Badge tone="bad">failed</Badge>)).toContain("text-bad");
    expect(render(<Badge>idle</Badge>)).toContain("bg-idle-soft");
  });

  it("name a dot for screen readers only if it has a label", () => {
    expect(render(<Dot tone="ok" label="Running" />)).toContain('<span class="sr-only">Running</span>');
    expect(render(<Dot tone="ok" />)).not.toContain("sr-only");
  });

  it("pulse while work is in progress", () => {
    expect(render(<Status status={{ text: "Running", tone: "info", busy: true }} />)).toContain("animate-ping");
    expect(render(<Status status={{ text: "Done", tone: "ok" }} />)).not.toContain("animate-ping");
  });
});

describe("Field", () => {
  it("connects the label, the control and the hint", () => {
    const html = render(
      <Field label="Name" hint="Used to sign in.">
        {(control) => <Input {...control} />}
      </Field>,
    );
    const id = /<label for="([^"]+)"/.exec(html)?.[1];
    expect(id).toBeTruthy();
    expect(html).toContain(`id="${id}"`);
    expect(html).toContain(`aria-describedby="${id}-note"`);
    expect(html).toContain(`id="${id}-note"`);
    expect(html).not.toContain("aria-invalid=");
  });

  it("shows an error in place of the hint and marks the control", () => {
    const html = render(
      <Field label="Name" hint="Used to sign in." error="Required.">
        {(control) => <Input {...control} />}
      </Field>,
    );
    expect(html).toContain('aria-invalid="true"');
    expect(html).toContain("Required.");
    expect(html).not.toContain("Used to sign in.");
  });

  it("renders no note without a hint or an error", () => {
    expect(render(<FieldNote />)).toBe("");
  });
});

describe("controls", () => {
  it("have accessible names and states", () => {
    const select = (
      <Select label="Project" value="a" onChange={() => undefined} choices={[{ value: "a", label: "A" }]} />
    );
    expect(render(select)).toContain('aria-label="Project"');
    expect(render(<Switch checked onChange={() => undefined} label="Enabled" />)).toContain('aria-checked="true"');
    expect(render(<Checkbox hidden checked={false} onChange={() => undefined} label="Select all" />)).toContain(
      'aria-label="Select all"',
    );
  });

  it("show numbers and lists as text, and never show secrets", () => {
    expect(render(<NumberInput value={0.5} onChange={() => undefined} />)).toContain('value="0.5"');
    expect(render(<NumberInput value={null} onChange={() => undefined} />)).toContain('value=""');
    expect(render(<ListInput value={["a", "b"]} onChange={() => undefined} />)).toContain("a\nb");
    expect(render(<SecretInput value="s" onChange={() => undefined} />)).toContain('type="password"');
  });

  it("split lists into trimmed lines", () => {
    expect(splitLines(" a \n\n b\n")).toEqual(["a", "b"]);
  });
});

describe("SubmitForm", () => {
  const form = (props: Partial<Parameters<typeof SubmitForm>[0]>) =>
    render(
      <SubmitForm busy={false} submitLabel="Save" onSubmit={() => undefined} onCancel={() => undefined} {...props}>
        <span>fields</span>
      </SubmitForm>,
    );

  it("has its fields, Cancel and a submit button", () => {
    const html = form({});
    expect(html).toMatch(/fields.*Cancel.*type="submit"[^>]*>Save/);
    expect(html).not.toContain('role="alert"');
  });

  it("cannot be sent until it is ready, or while it is being sent", () => {
    expect(form({})).not.toContain('disabled=""');
    expect(form({ ready: false })).toContain('disabled=""');
    expect(form({ busy: true })).toContain('disabled=""');
  });

  it("shows the error, or the message in its place, and what belongs to it", () => {
    expect(form({ error: new Error("Out of memory.") })).toMatch(/role="alert"[^>]*>Out of memory\./);
    const replaced = form({ error: new Error("a"), errorMessage: "The test failed.", errorDetails: <ul /> });
    expect(replaced).toMatch(/role="alert"[^>]*>The test failed\.<\/p><ul>/);
  });

  it("asks for the highlighted fields to be fixed if the platform names them", () => {
    const error = new ApiError(422, { errors: [{ field: "name", message: "too long" }] } as never);
    expect(form({ error })).toContain("Fix the highlighted fields.");
  });
});

describe("messages", () => {
  it("are read aloud", () => {
    expect(render(<FormError>No.</FormError>)).toContain('role="alert"');
    expect(render(<Loading label="Loading board" />)).toContain('role="status" aria-label="Loading board"');
  });

  it("say why a page is read-only, if it is", () => {
    expect(render(<ReadOnlyNote reason="Only administrators." />)).toContain("Only administrators.");
    expect(render(<ReadOnlyNote reason={undefined} />)).toBe("");
  });

  it("distinguish a lost connection from other errors, and name the request", () => {
    expect(render(<ErrorState error={new ApiError(0, { detail: "Offline." })} />)).toContain("Not connected");
    const failed = new ApiError(500, { detail: "Broken.", requestId: "req_1" });
    const html = render(<ErrorState error={failed} retry={() => undefined} />);
    expect(html).toContain("Something went wrong");
    expect(html).toContain("req_1");
    expect(html).toContain("Retry");
  });

  it("add the errors of single fields", () => {
    const error = new ApiError(422, { detail: "Invalid.", errors: [{ field: "name", message: "too long" }] } as never);
    expect(errorMessage(error)).toBe("Invalid. name: too long");
    const repeated = new ApiError(400, { detail: "No.", errors: [{ field: "name", message: "No." }] } as never);
    expect(errorMessage(repeated)).toBe("No.");
    expect(errorMessage("text")).toBe("text");
  });
});

describe("Loaded", () => {
  const query = {
    data: undefined as string | undefined,
    error: null as unknown,
    isPending: true,
    refetch: () => undefined,
  };
  const show = (change: Partial<typeof query>) =>
    render(<Loaded query={{ ...query, ...change }}>{(text) => <b>{text}</b>}</Loaded>);

  it("shows loading, then the data or the error", () => {
    expect(show({})).toContain('role="status"');
    expect(show({ data: "tasks", isPending: false })).toBe("<b>tasks</b>");
    expect(show({ error: new Error("Broken."), isPending: false })).toContain("Broken.");
  });

  it("keeps the data if reading it again fails", () => {
    expect(show({ data: "tasks", error: new Error("Broken."), isPending: false })).toBe("<b>tasks</b>");
  });
});

describe("content", () => {
  it("is replaced by an explanation if there is none", () => {
    expect(render(<Empty title="No tasks">Create one.</Empty>)).toMatch(/No tasks.*Create one\./);
  });

  it("keeps line breaks and shows code as code", () => {
    const html = render(<PlainText text={"run `make`\n```sh\nls\n```"} />);
    expect(html).toMatch(/<code[^>]*>make<\/code>/);
    expect(html).toMatch(/<pre[^>]*><code>ls/);
    expect(render(<PlainText text="<b>" />)).toContain("&lt;b&gt;");
  });

  it("draws a line only from two points on", () => {
    expect(render(<Sparkline points={[1, 2]} max={2} label="CPU" />)).toContain("<polyline");
    expect(render(<Sparkline points={[1]} max={2} label="CPU" />)).not.toContain("<polyline");
  });

  it("shows the duration of something finished", () => {
    expect(render(<Elapsed from="2026-01-01T00:00:00Z" to="2026-01-01T00:01:05Z" />)).toContain("1m 5s");
  });
});
