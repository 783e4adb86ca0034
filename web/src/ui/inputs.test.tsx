/** What inputs report while somebody types. */
import type { ComponentProps } from "react";
import { describe, expect, it, vi } from "vitest";

const stubs = vi.hoisted(() => ({ type: (_: string) => undefined as unknown }));
vi.mock("react", async (original) => ({
  ...(await original<object>()),
  ...(await import("./static-hooks")).hooks,
}));
vi.mock("./field", async (original) => {
  const real = await original<typeof import("./field")>();
  const listen = (onChange: ((event: never) => unknown) | undefined) => {
    stubs.type = (value) => onChange?.({ target: { value } } as never);
  };
  const Input = (props: ComponentProps<"input">) => {
    listen(props.onChange);
    return <real.Input {...props} />;
  };
  const Textarea = (props: ComponentProps<"textarea">) => {
    listen(props.onChange);
    return <real.Textarea {...props} />;
  };
  return { ...real, Input, Textarea };
});

import { FieldNote } from "./field";
import { ListInput, NumberInput } from "./inputs";
import { renderAgain, renderFirst } from "./static-hooks";

describe("NumberInput", () => {
  it("reports numbers, and null for an empty input", () => {
    const onChange = vi.fn();
    renderFirst(<NumberInput value={1} onChange={onChange} />);
    stubs.type("2.5");
    stubs.type("");
    stubs.type("-");
    expect(onChange.mock.calls).toEqual([[2.5], [null]]);
  });

  it("keeps the number as it was typed, until the value is changed from outside", () => {
    renderFirst(<NumberInput value={1} onChange={() => undefined} />);
    stubs.type("2.50");
    expect(renderAgain(<NumberInput value={2.5} onChange={() => undefined} />)).toContain('value="2.50"');
    expect(renderAgain(<NumberInput value={3} onChange={() => undefined} />)).toContain('value="3"');
    expect(renderAgain(<NumberInput value={null} onChange={() => undefined} />)).toContain('value=""');
  });
});

describe("ListInput", () => {
  const show = (value: string[], onChange = vi.fn()) => <ListInput value={value} onChange={onChange} />;

  it("reports trimmed lines without empty ones, and keeps the text as it was typed", () => {
    const onChange = vi.fn();
    renderFirst(show([], onChange));
    stubs.type("a \n\nb\n");
    expect(onChange.mock.calls).toEqual([[["a", "b"]]]);
    expect(renderAgain(show(["a", "b"]))).toContain("a \n\nb\n</textarea>");
  });

  it("shows a list that was changed from outside", () => {
    renderFirst(show(["a"]));
    expect(renderAgain(show(["c", "d"]))).toContain("c\nd</textarea>");
  });
});

describe("FieldNote", () => {
  it("keeps its line after an error is corrected, so that nothing below it moves", () => {
    expect(renderFirst(<FieldNote />)).toBe("");
    renderAgain(<FieldNote error="Required." />);
    expect(renderAgain(<FieldNote error="Required." />)).toContain("Required.");
    expect(renderAgain(<FieldNote />)).toMatch(/<p[^>]*><\/p>/);
    expect(renderAgain(<FieldNote hint="Used to sign in." />)).toContain("Used to sign in.");
  });
});
