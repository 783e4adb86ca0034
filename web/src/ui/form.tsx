/**
 * The two kinds of forms. `Form` edits a stored value in place: it tracks changes, saves or discards them, and warns before they are lost.
 * `SubmitForm` is sent once, usually in a dialog.
 */
import { useBlocker } from "@tanstack/react-router";
import clsx from "clsx";
import { type FormEvent, type ReactNode, useEffect, useRef, useState } from "react";
import { formError } from "@/api/errors";
import { mergeChanges } from "@/lib/merge";
import { Button } from "./button";
import { Confirm } from "./dialog";

export interface Draft<T> {
  value: T;
  /** Differs from the stored value. */
  dirty: boolean;
  set: (patch: Partial<T>) => void;
  reset: () => void;
  /** Replace draft and base by the value that is stored now. */
  replace: (stored: T) => void;
}

/** Space in pixels for a field's hint below it. */
const HINT_HEIGHT = 40;

const isEqual = (one: unknown, other: unknown) => JSON.stringify(one) === JSON.stringify(other);

/** A draft of a stored value. Changes that others save in the meantime are merged in, except for fields changed here. */
export function useDraft<T extends object>(stored: T): Draft<T> {
  const [value, setValue] = useState(stored);
  const base = useRef(stored);
  useEffect(() => {
    if (isEqual(base.current, stored)) return;
    const before = base.current;
    setValue((now) => mergeChanges(before, now, stored));
    base.current = stored;
  }, [stored]);
  return {
    value,
    dirty: !isEqual(value, stored),
    set: (patch) => setValue((now) => ({ ...now, ...patch })),
    reset: () => setValue(stored),
    replace: (now) => {
      base.current = now;
      setValue(now);
    },
  };
}

/** Two columns if there is room. Children that need the full width use `sm:col-span-2`. */
export function Fields({ children }: { children: ReactNode }) {
  return <div className="grid gap-x-5 gap-y-3.5 p-4 sm:grid-cols-2">{children}</div>;
}

/** A form with a Save and Cancel bar, which appears when something has changed. `frozen` is the reason why it is read-only. */
export function Form({
  draft,
  children,
  onSave,
  onForce,
  busy,
  error,
  frozen,
}: {
  draft: Pick<Draft<object>, "dirty" | "reset">;
  children: ReactNode;
  onSave: () => void;
  /** Save although the test failed. Offered only after a failed test. */
  onForce?: (() => void) | undefined;
  busy: boolean;
  error?: unknown;
  frozen?: string | undefined;
}) {
  const form = useRef<HTMLFormElement>(null);
  const bar = useRef<HTMLDivElement>(null);
  // keep the focused field visible when the bar appears
  useEffect(() => {
    const field = document.activeElement;
    if (!draft.dirty || !bar.current || !field || !form.current?.contains(field)) return;
    if (field.getBoundingClientRect().bottom > bar.current.getBoundingClientRect().top - HINT_HEIGHT)
      field.scrollIntoView({ block: "center" });
  }, [draft.dirty]);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!busy && draft.dirty) onSave();
  };
  return (
    <form ref={form} onSubmit={submit} noValidate className="[&_:is(input,textarea,button)]:scroll-mb-28">
      <fieldset disabled={Boolean(frozen)} className="min-w-0">
        {children}
      </fieldset>
      {draft.dirty && (
        <div
          ref={bar}
          className="sticky bottom-0 z-10 -mx-1 mb-4 flex flex-wrap items-center gap-2 rounded-lg border bg-raised px-3 py-2 shadow-float"
        >
          <p className="mr-auto min-w-0 text-[13px]" aria-live="polite">
            {error ? (
              <span className="text-bad">{onForce ? "The test failed. Nothing was saved." : formError(error)}</span>
            ) : (
              <span className="text-soft">Unsaved changes</span>
            )}
          </p>
          <Button onClick={draft.reset} disabled={busy}>
            Cancel
          </Button>
          {onForce && (
            <Button onClick={onForce} disabled={busy}>
              Save without testing
            </Button>
          )}
          <Button type="submit" look="primary" busy={busy}>
            Save
          </Button>
        </div>
      )}
      <LeaveGuard when={draft.dirty && !busy} />
    </form>
  );
}

/** Ask before leaving with unsaved changes, also when the browser tab is closed. */
export function LeaveGuard({ when }: { when: boolean }) {
  const blocker = useBlocker({ shouldBlockFn: () => when, enableBeforeUnload: () => when, withResolver: true });
  return (
    <Confirm
      open={blocker.status === "blocked"}
      onOpenChange={(open) => !open && blocker.status === "blocked" && blocker.reset()}
      title="Leave without saving?"
      action="Leave"
      onConfirm={() => blocker.status === "blocked" && blocker.proceed()}
    >
      Your changes have not been saved.
    </Confirm>
  );
}

/** A note that says why the page is read-only. */
export function ReadOnlyNote({ reason }: { reason: string | undefined }) {
  return reason ? <p className="mb-3 rounded-md border bg-sunken px-3 py-2 text-[13px] text-soft">{reason}</p> : null;
}

/** The values of a form that is sent once, and a function that changes some of them. */
export function useFormState<T extends object>(initial: T): [values: T, set: (patch: Partial<T>) => void] {
  const [values, setValues] = useState(initial);
  return [values, (patch) => setValues((now) => ({ ...now, ...patch }))];
}

/** The error of a whole form, read aloud when it appears. */
export function FormError({ children, className }: { children: ReactNode; className?: string }) {
  return (
    <p role="alert" className={clsx("text-[13px] text-bad", className)}>
      {children}
    </p>
  );
}

/** A form that is sent once: fields, the error of the last attempt, Cancel and the submit button. */
export function SubmitForm({
  columns = false,
  children,
  busy,
  error,
  errorMessage,
  errorDetails,
  ready = true,
  submitLabel,
  onSubmit,
  onCancel,
  divided = false,
  aside,
  actions,
}: {
  /** Two columns if there is room. Fields that need the full width use `sm:col-span-2`. */
  columns?: boolean;
  children: ReactNode;
  busy: boolean;
  error?: unknown;
  /** Shown in place of the message of `error`. */
  errorMessage?: string | undefined;
  /** Shown below the error. */
  errorDetails?: ReactNode;
  /** All required fields are filled in. */
  ready?: boolean;
  submitLabel: ReactNode;
  onSubmit: () => void;
  onCancel: () => void;
  /** Draw a line above the buttons. */
  divided?: boolean;
  /** At the other end of the row of buttons. */
  aside?: ReactNode;
  /** Buttons between Cancel and the submit button. */
  actions?: ReactNode;
}) {
  const submit = (event: FormEvent) => {
    event.preventDefault();
    event.stopPropagation(); // the dialog may have been opened from another form
    if (ready && !busy) onSubmit();
  };
  const fullWidth = columns && "sm:col-span-2";
  return (
    <form onSubmit={submit} className={columns ? "grid gap-3 sm:grid-cols-2" : "flex flex-col gap-3"} noValidate>
      {children}
      {Boolean(error) && <FormError className={clsx(fullWidth)}>{errorMessage ?? formError(error)}</FormError>}
      {errorDetails}
      <div className={clsx("flex flex-wrap items-center justify-end gap-2", divided && "border-t pt-3", fullWidth)}>
        {/* on a phone on a line of its own, so that the buttons stay together */}
        {aside && <div className="mr-auto max-sm:order-last max-sm:basis-full">{aside}</div>}
        <Button onClick={onCancel}>Cancel</Button>
        {actions}
        <Button type="submit" look="primary" busy={busy} disabled={!ready}>
          {submitLabel}
        </Button>
      </div>
    </form>
  );
}
