const opened = new EventTarget();

export function openPalette(): void {
  opened.dispatchEvent(new Event("open"));
}

export function onPalette(open: () => void): () => void {
  opened.addEventListener("open", open);
  return () => opened.removeEventListener("open", open);
}
