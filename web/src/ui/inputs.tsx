/** Inputs for numbers and lists: they keep the text as typed and report the parsed value. */
import { type ComponentProps, useState } from "react";
import { Input, Textarea } from "./field";

type InputProps = Omit<ComponentProps<"input">, "value" | "onChange" | "type">;

/** A number input. Null means empty; text that is not a number is not reported. */
export function NumberInput({
  value,
  onChange,
  ...rest
}: InputProps & { value: number | null; onChange: (value: number | null) => void }) {
  const [text, setText] = useState(value === null ? "" : String(value));
  const shown = (text.trim() === "" ? null : Number(text)) === value ? text : value === null ? "" : String(value);
  return (
    <Input
      inputMode="decimal"
      {...rest}
      type="number"
      value={shown}
      className="tabular-nums"
      onChange={(event) => {
        const typed = event.target.value;
        if (typed.trim() !== "" && !Number.isFinite(Number(typed))) return;
        setText(typed);
        onChange(typed.trim() === "" ? null : Number(typed));
      }}
    />
  );
}

/** Return the trimmed lines that are not empty. */
export function splitLines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

/** A list, one item per line. */
export function ListInput({
  value,
  onChange,
  mono = false,
  ...rest
}: Omit<ComponentProps<"textarea">, "value" | "onChange"> & {
  value: string[];
  onChange: (value: string[]) => void;
  mono?: boolean;
}) {
  const [text, setText] = useState(value.join("\n"));
  const shown = splitLines(text).join("\n") === value.join("\n") ? text : value.join("\n");
  return (
    <Textarea
      spellCheck={false}
      {...rest}
      className={mono ? "font-mono !text-xs leading-5" : ""}
      value={shown}
      onChange={(event) => {
        setText(event.target.value);
        onChange(splitLines(event.target.value));
      }}
    />
  );
}

/** An input for write-only values. */
export function SecretInput(props: Omit<ComponentProps<"input">, "type">) {
  return <Input autoComplete="new-password" spellCheck={false} {...props} type="password" className="font-mono" />;
}
