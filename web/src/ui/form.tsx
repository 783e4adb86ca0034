/** A form that is edited in place: what has changed, saving it or not, and not losing it by mistake. */
import { useBlocker } from "@tanstack/react-router";
import { type FormEvent, type ReactNode, useEffect, useRef, useState } from "react";
import { merged } from "@/lib/merge";
import { overall } from "@/lib/problems";
import { Button } from "./button";
import { Confirm } from "./dialog";

export interface Draft<T> {
  value: T;
  /** Differs from what is stored. */
  dirty: boolean;
  set: (patch: Partial<T>) => void;
  reset: () => void;
  /** This is what is stored now. */
  take: (stored: T) => void;
}

/** What a field's hint needs below it. */
const ROOM = 40;

const same = (one: unknown, other: unknown) => JSON.stringify(one) === JSON.stringify(other);

/** What is being written. What others store meanwhile comes in, but for what was changed here. */
export function useDraft<T extends object>(stored: T): Draft<T> {
  const [value, setValue] = useState(stored);
  const base = useRef(stored);
  useEffect(() => {
    if (same(base.current, stored)) return;
    const before = base.current;
    setValue((now) => merged(before, now, stored));
    base.current = stored;
  }, [stored]);
  return {
    value,
    dirty: !same(value, stored),
    set: (patch) => setValue((now) => ({ ...now, ...patch })),
    reset: () => setValue(stored),
    take: (now) => {
      base.current = now;
      setValue(now);
    },
  };
}

/** Two columns where there is room. Children that need the whole width wear `sm:col-span-2`. */
export function Fields({ children }: { children: ReactNode }) {
  return <div className="grid gap-x-5 gap-y-3.5 p-4 sm:grid-cols-2">{children}</div>;
}

/** With its bar of Save and Cancel, which is there when something has changed. `frozen` says why nothing may be changed. */
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
  /** Offered after a test that failed: save what was not found to work. */
  onForce?: (() => void) | undefined;
  busy: boolean;
  error?: unknown;
  frozen?: string | undefined;
}) {
  const form = useRef<HTMLFormElement>(null);
  const bar = useRef<HTMLDivElement>(null);
  // what is being filled in stays in sight when the bar appears
  useEffect(() => {
    const field = document.activeElement;
    if (!draft.dirty || !bar.current || !field || !form.current?.contains(field)) return;
    if (field.getBoundingClientRect().bottom > bar.current.getBoundingClientRect().top - ROOM)
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
              <span className="text-bad">{onForce ? "The test failed. Nothing was saved." : overall(error)}</span>
            ) : (
              <span className="text-soft">Not saved yet.</span>
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

/** Asks before somebody goes away from what they have not saved; also when the browser's tab is closed. */
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
      What you have changed here is not saved.
    </Confirm>
  );
}

/** Why things are shown and cannot be changed. */
export function Frozen({ reason }: { reason: string | undefined }) {
  return reason ? <p className="mb-3 rounded-md border bg-sunken px-3 py-2 text-[13px] text-soft">{reason}</p> : null;
}
