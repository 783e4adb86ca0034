/** Paths in a sandbox, and file types by name and content. */
export const HOME = "/home/user";
/** Larger files are not opened in the editor. */
export const EDIT_BYTES = 2 * 1024 * 1024;
export const IMAGE_BYTES = 20 * 1024 * 1024;

/** Only image types that cannot contain scripts. */
const IMAGES: Record<string, string> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
};

export function nameOf(path: string): string {
  return path.replace(/\/+$/, "").split("/").pop() || "/";
}

export function parentOf(path: string): string {
  const cut = path.replace(/\/+$/, "").lastIndexOf("/");
  return cut <= 0 ? "/" : path.slice(0, cut);
}

/** Resolve a name or an absolute path against a folder; null if it is not a valid file path. */
export function join(folder: string, name: string): string | null {
  const parts: string[] = [];
  for (const part of `${name.startsWith("/") ? "" : `${folder}/`}${name}`.split("/")) {
    if (part === "..") parts.pop();
    else if (part && part !== ".") parts.push(part);
  }
  const clean = name.trim();
  return !clean || clean.endsWith("/") || clean.includes("\0") || !parts.length ? null : `/${parts.join("/")}`;
}

export function isWithin(path: string, folder: string): boolean {
  return folder === "/" || path === folder || path.startsWith(`${folder}/`);
}

/** Return every folder from the root down to this one. */
export function listCrumbs(folder: string): { name: string; path: string }[] {
  const parts = folder.split("/").filter(Boolean);
  return [{ name: "/", path: "/" }, ...parts.map((name, i) => ({ name, path: `/${parts.slice(0, i + 1).join("/")}` }))];
}

/** Return the folders between a folder and a path in it, to expand a tree down to that path. */
export function foldersBetween(folder: string, path: string): string[] {
  const folders: string[] = [];
  for (let at = parentOf(path); isWithin(at, folder) && at !== folder; at = parentOf(at)) folders.push(at);
  return folders;
}

export function extensionOf(path: string): string {
  const name = nameOf(path);
  return name.includes(".") ? (name.split(".").pop() as string).toLowerCase() : "";
}

export function imageType(path: string): string | undefined {
  return IMAGES[extensionOf(path)];
}

/** Return the exact text of a file, or null if it is binary. */
export function textOf(bytes: Uint8Array): string | null {
  if (bytes.subarray(0, 8192).includes(0)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}
