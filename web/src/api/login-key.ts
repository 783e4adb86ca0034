/**
 * The key of the current login. Browsers send the login's cookie to every port of a host, also to a forwarded port of a sandbox, but
 * separate local storage by port. The platform therefore accepts the cookie only together with this key.
 */

const NAME = "sandyard.key";
let unstored: string | null = null; // if local storage is full or forbidden; lost when the page is reloaded

export function getLoginKey(): string | null {
  try {
    return unstored ?? localStorage.getItem(NAME);
  } catch {
    return null;
  }
}

/** Store the key, so that all tabs use it. Null forgets it. */
export function setLoginKey(key: string | null): void {
  unstored = null;
  try {
    if (key === null) localStorage.removeItem(NAME);
    else localStorage.setItem(NAME, key);
  } catch {
    unstored = key;
  }
}

/** Add the key to the headers of a request that is authenticated by the cookie. */
export function addLoginKey(setHeader: (name: string, value: string) => void): void {
  const key = getLoginKey();
  if (key) setHeader("X-Sandyard-CSRF", key);
}
