/** How long a message box that is asked for may take to be shown. */
const PATIENCE_MS = 5000;

let wanted: { session: string; until: number } | null = null;

/** Put the focus into the message box of this session: now if it is shown, and when it is shown (again) a moment later. */
export function focusComposer(session: string): void {
  wanted = { session, until: Date.now() + PATIENCE_MS };
  document.querySelector<HTMLElement>(`textarea[data-composer="${session}"]`)?.focus();
}

/** Whether this session's message box, which is being shown, was asked to take the focus. */
export function takesFocus(session: string): boolean {
  return wanted?.session === session && Date.now() < wanted.until;
}
