/** How long to wait for a requested message box to appear. */
const PATIENCE_MS = 5000;

let wanted: { session: string; until: number } | null = null;

/** Focus the message box of this session: now if it is shown, and again if it is rendered within the next few seconds. */
export function focusComposer(session: string): void {
  wanted = { session, until: Date.now() + PATIENCE_MS };
  document.querySelector<HTMLElement>(`textarea[data-composer="${session}"]`)?.focus();
}

/** Whether this session's message box should take the focus when it is rendered. */
export function takesFocus(session: string): boolean {
  return wanted?.session === session && Date.now() < wanted.until;
}
