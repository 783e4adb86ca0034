import clsx from "clsx";
import { Check, ChevronDown } from "lucide-react";
import { Checkbox as RadixCheckbox, Select as RadixSelect, Switch as RadixSwitch } from "radix-ui";
import { type ComponentProps, type ReactNode, useId, useState } from "react";

const BOX =
  "w-full rounded-md border border-line-strong bg-surface px-2.5 text-text disabled:opacity-60 aria-invalid:border-bad";

/** A labelled control with its hint or error. `children` receives the id and ARIA attributes for the control. */
export function Field({
  label,
  hint,
  error,
  children,
  className,
}: {
  label: ReactNode;
  hint?: ReactNode;
  error?: ReactNode;
  children: (control: { id: string; "aria-describedby"?: string; "aria-invalid"?: boolean }) => ReactNode;
  className?: string;
}) {
  const id = useId();
  const note = error || hint ? `${id}-note` : undefined;
  return (
    <div className={clsx("flex flex-col gap-1", className)}>
      <label htmlFor={id} className="text-[13px] font-medium">
        {label}
      </label>
      {children({ id, "aria-describedby": note, "aria-invalid": error ? true : undefined })}
      <FieldNote id={note} hint={hint} error={error} />
    </div>
  );
}

/** A field's error, or its hint. After an error is corrected, its line stays empty: the layout must not shift while the user
 * is about to click the button below. */
export function FieldNote({ id, hint, error }: { id?: string | undefined; hint?: ReactNode; error?: ReactNode }) {
  const [hadError, setHadError] = useState(false);
  if (error && !hadError) setHadError(true);
  if (!error && !hint && !hadError) return null;
  return (
    <p id={id} className={clsx("min-h-[1lh] text-xs", error ? "text-bad" : "text-faint")}>
      {error || hint}
    </p>
  );
}

export function Input({ className, ...rest }: ComponentProps<"input">) {
  return <input {...rest} className={clsx(BOX, "h-8 text-[13px]", className)} />;
}

export function Textarea({ className, ...rest }: ComponentProps<"textarea">) {
  return <textarea rows={4} {...rest} className={clsx(BOX, "py-1.5 text-[13px]", className)} />;
}

export interface Choice {
  value: string;
  label: ReactNode;
  detail?: ReactNode;
  disabled?: boolean;
}

/** A select box. Radix does not allow empty values: use a word such as "default". */
export function Select({
  value,
  onChange,
  choices,
  placeholder,
  label,
  prefix,
  className,
  ...control
}: {
  value: string;
  onChange: (value: string) => void;
  choices: Choice[];
  placeholder?: string;
  label?: string;
  /** Shown before the value. */
  prefix?: string;
  className?: string;
  id?: string;
  disabled?: boolean;
  autoFocus?: boolean;
  "aria-describedby"?: string;
  "aria-invalid"?: boolean;
}) {
  const { disabled, ...aria } = control;
  return (
    <RadixSelect.Root value={value} onValueChange={onChange} disabled={disabled ?? false}>
      <RadixSelect.Trigger
        {...aria}
        aria-label={label}
        className={clsx(BOX, "inline-flex h-8 items-center justify-between gap-2 text-[13px]", className)}
      >
        <span className="truncate">
          {prefix && <span className="text-faint">{prefix}</span>}
          <RadixSelect.Value placeholder={placeholder} />
        </span>
        <ChevronDown className="size-3.5 shrink-0 text-faint" aria-hidden />
      </RadixSelect.Trigger>
      <RadixSelect.Portal>
        <RadixSelect.Content
          position="popper"
          sideOffset={4}
          className="z-50 max-h-80 min-w-[var(--radix-select-trigger-width)] overflow-hidden rounded-md border bg-raised shadow-float"
        >
          <RadixSelect.Viewport className="p-1">
            {choices.map((choice) => (
              <RadixSelect.Item
                key={choice.value}
                value={choice.value}
                disabled={choice.disabled ?? false}
                className="flex cursor-pointer items-center gap-2 rounded px-2 py-1.5 text-[13px] outline-none data-[disabled]:opacity-50 data-[highlighted]:bg-hover"
              >
                <span className="size-3.5 shrink-0">
                  <RadixSelect.ItemIndicator>
                    <Check className="size-3.5" aria-hidden />
                  </RadixSelect.ItemIndicator>
                </span>
                <span>
                  <RadixSelect.ItemText>{choice.label}</RadixSelect.ItemText>
                  {choice.detail && <span className="block text-xs text-faint">{choice.detail}</span>}
                </span>
              </RadixSelect.Item>
            ))}
          </RadixSelect.Viewport>
        </RadixSelect.Content>
      </RadixSelect.Portal>
    </RadixSelect.Root>
  );
}

export function Switch({
  checked,
  onChange,
  label,
  disabled,
}: {
  checked: boolean;
  onChange: (on: boolean) => void;
  label: ReactNode;
  disabled?: boolean;
}) {
  const id = useId();
  return (
    <div className="flex items-center gap-2">
      <RadixSwitch.Root
        id={id}
        checked={checked}
        onCheckedChange={onChange}
        disabled={disabled ?? false}
        className="h-[18px] w-8 shrink-0 rounded-full border border-line-strong bg-sunken p-px transition-colors data-[state=checked]:border-accent data-[state=checked]:bg-accent"
      >
        <RadixSwitch.Thumb className="block size-3.5 rounded-full bg-faint transition-transform data-[state=checked]:translate-x-[14px] data-[state=checked]:bg-on-accent" />
      </RadixSwitch.Root>
      <label htmlFor={id} className="text-[13px]">
        {label}
      </label>
    </div>
  );
}

export function Checkbox({
  checked,
  onChange,
  label,
  hidden = false,
}: {
  checked: boolean;
  onChange: (on: boolean) => void;
  label: string;
  hidden?: boolean;
}) {
  const id = useId();
  return (
    <span className="inline-flex items-center gap-2">
      <RadixCheckbox.Root
        id={id}
        checked={checked}
        onCheckedChange={(on) => onChange(on === true)}
        aria-label={hidden ? label : undefined}
        className="grid size-4 shrink-0 place-items-center rounded border border-line-strong bg-surface data-[state=checked]:border-accent data-[state=checked]:bg-accent"
      >
        <RadixCheckbox.Indicator>
          <Check className="size-3 text-on-accent" strokeWidth={3} aria-hidden />
        </RadixCheckbox.Indicator>
      </RadixCheckbox.Root>
      {!hidden && (
        <label htmlFor={id} className="text-[13px]">
          {label}
        </label>
      )}
    </span>
  );
}
