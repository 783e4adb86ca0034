import { useId, useMemo, useState } from "react";
import { markHidden } from "@/lib/hidden-characters";
import { Button } from "@/ui/button";
import { Checkbox, Field, FieldNote, Input, Select, Switch, Textarea } from "@/ui/field";
import { currentValue, type Filled, type FormField, parseFields, validate } from "./question-form";

/** Up to this many choices are shown as radio buttons; more are shown as a select. */
const SHOWN_CHOICES = 8;

const FREE: FormField[] = [
  {
    name: "answer",
    label: "Answer",
    hint: "",
    type: "long",
    choices: [],
    required: true,
    initial: "",
    least: undefined,
    most: undefined,
    format: "",
    pattern: "",
  },
];

/** A form built from the JSON schema of the agent's question. Ctrl+Enter submits it. */
export function AskForm({
  schema,
  title,
  busy,
  onAnswer,
  onDecline,
}: {
  schema: unknown;
  title: string;
  busy: boolean;
  onAnswer: (content: Record<string, unknown>) => void;
  onDecline: () => void;
}) {
  const fields = useMemo(() => {
    const parsed = parseFields(schema);
    return parsed.length ? parsed : FREE;
  }, [schema]);
  const [filled, setFilled] = useState<Record<string, Filled>>({});
  const [tried, setTried] = useState(false);
  const { content, errors } = validate(fields, filled);
  const answer = () => {
    setTried(true);
    if (!Object.keys(errors).length && !busy) onAnswer(content);
  };
  return (
    <form
      className="flex flex-col gap-3"
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        answer();
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) answer();
      }}
    >
      {fields.map((field) => (
        <One
          key={field.name}
          field={field}
          label={fields.length === 1 && field.label === markHidden(title) ? "Your answer" : field.label}
          value={currentValue(field, filled)}
          error={tried ? errors[field.name] : undefined}
          onChange={(value) => setFilled((before) => ({ ...before, [field.name]: value }))}
        />
      ))}
      <div className="flex gap-2">
        <Button look="primary" type="submit" busy={busy}>
          Answer
        </Button>
        <Button onClick={onDecline} disabled={busy}>
          Decline
        </Button>
      </div>
    </form>
  );
}

function One({
  field,
  label,
  value,
  error,
  onChange,
}: {
  field: FormField;
  label: string;
  value: Filled;
  error: string | undefined;
  onChange: (value: Filled) => void;
}) {
  if (field.type === "boolean") {
    return (
      <div>
        <Switch checked={value === true} onChange={onChange} label={label} />
        {field.hint && <p className="mt-0.5 text-xs text-faint">{field.hint}</p>}
      </div>
    );
  }
  if (field.type === "choices") {
    const chosen = Array.isArray(value) ? value : [];
    return (
      <fieldset className="flex flex-col gap-1">
        <legend className="mb-1 text-[13px] font-medium">
          {label}
          {!field.required && <span className="font-normal text-faint"> (optional)</span>}
        </legend>
        {field.choices.map((choice, index) => (
          <Checkbox
            key={choice.label}
            label={choice.label}
            checked={chosen.includes(String(index))}
            onChange={(on) => onChange(on ? [...chosen, String(index)] : chosen.filter((one) => one !== String(index)))}
          />
        ))}
        <FieldNote hint={field.hint} error={error} />
      </fieldset>
    );
  }
  const text = typeof value === "string" ? value : "";
  if (field.type === "choice" && field.choices.length <= SHOWN_CHOICES) {
    return <Radios field={field} label={label} value={text} error={error} onChange={onChange} />;
  }
  return (
    <Field
      label={
        <>
          {label}
          {!field.required && <span className="font-normal text-faint"> (optional)</span>}
        </>
      }
      hint={field.hint || undefined}
      error={error}
    >
      {(control) => {
        if (field.type === "choice") {
          return (
            <Select
              {...control}
              value={text}
              placeholder="Choose"
              onChange={onChange}
              choices={field.choices.map((choice, index) => ({ value: String(index), label: choice.label }))}
            />
          );
        }
        if (field.type === "long")
          return <Textarea {...control} rows={2} value={text} onChange={(event) => onChange(event.target.value)} />;
        const numeric = field.type === "number" || field.type === "integer";
        return (
          <Input
            {...control}
            inputMode={numeric ? "decimal" : undefined}
            value={text}
            onChange={(event) => onChange(event.target.value)}
          />
        );
      }}
    </Field>
  );
}

function Radios({
  field,
  label,
  value,
  error,
  onChange,
}: {
  field: FormField;
  label: string;
  value: string;
  error: string | undefined;
  onChange: (value: Filled) => void;
}) {
  const group = useId();
  return (
    <fieldset className="flex flex-col gap-1">
      <legend className="mb-1 text-[13px] font-medium">
        {label}
        {!field.required && <span className="font-normal text-faint"> (optional)</span>}
      </legend>
      {field.choices.map((choice, index) => (
        <label key={choice.label} className="flex items-start gap-2 text-[13px]">
          <input
            type="radio"
            name={group}
            className="mt-0.5 size-4 shrink-0 accent-accent"
            checked={value === String(index)}
            onChange={() => onChange(String(index))}
            onClick={() => !field.required && value === String(index) && onChange("")}
          />
          <span className="min-w-0 break-words">
            {choice.label}
            {choice.hint && <span className="block text-xs text-faint">{choice.hint}</span>}
          </span>
        </label>
      ))}
      <FieldNote hint={field.hint} error={error} />
    </fieldset>
  );
}
