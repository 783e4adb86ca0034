/** The address bar of a preview holds what follows the host name. Pure. */

export interface Address {
  /** With its query, encoded. */
  path: string;
  /** With its #, or empty. It never leaves the browser. */
  hash: string;
}

/** What somebody typed or pasted: a path with or without its slash, or a whole URL. */
export function parseAddress(text: string): Address {
  const whole = /^https?:\/\//i.test(text.trim());
  const target = whole ? text.trim() : `http://preview/${text.trim().replace(/^\/+/, "")}`;
  try {
    const { pathname, search, hash } = new URL(target);
    return { path: pathname + search, hash };
  } catch {
    return { path: "/", hash: "" };
  }
}
