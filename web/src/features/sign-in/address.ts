/** Parse the address of the sign-in page. It is untrusted: anybody can create a link to it. */

/** Return where to go after sign-in: only an address of this site. */
export function localTarget(next: string | undefined): string {
  return next?.startsWith("/") && !/^\/\s*[/\\]/.test(next) ? next : "/";
}

/** Return the token of `#token=…`, as printed by `sandyard up`. */
export function tokenIn(hash: string): string | undefined {
  const given = /^#token=(.+)$/.exec(hash)?.[1];
  try {
    return given && decodeURIComponent(given);
  } catch {
    return given;
  }
}
