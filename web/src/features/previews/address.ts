/** Parse the address bar of a preview, which contains everything after the host name. Pure. */

export interface Address {
  /** Encoded, including the query. */
  path: string;
  /** Including #, or empty. Never sent to the server. */
  hash: string;
}

/** Parse typed or pasted text: a path with or without leading slash, or a whole URL. */
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
