/** Which shell of a sandbox this browser tab shows. The selection survives a reload. */
const storageKey = (sandboxId: string) => `sandyard.terminal.${sandboxId}`;

export function rememberedShell(sandboxId: string): string | undefined {
  return sessionStorage.getItem(storageKey(sandboxId)) ?? undefined;
}

export function rememberShell(sandboxId: string, terminalId: string | undefined): void {
  if (terminalId) sessionStorage.setItem(storageKey(sandboxId), terminalId);
  else sessionStorage.removeItem(storageKey(sandboxId));
}
