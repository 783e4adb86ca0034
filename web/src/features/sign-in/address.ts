/** What the address of the sign-in page says. Anybody can make a link to it: nothing in it is believed. */

/** Where to go then: only an address of this very site. */
export function inside(next: string | undefined): string {
  return next?.startsWith("/") && !/^\/\s*[/\\]/.test(next) ? next : "/";
}

/** Of `#token=…`, as `sandyard up` prints it. */
export function tokenIn(hash: string): string | undefined {
  const given = /^#token=(.+)$/.exec(hash)?.[1];
  try {
    return given && decodeURIComponent(given);
  } catch {
    return given;
  }
}
