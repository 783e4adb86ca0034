/** Which files the user has marked as viewed. A mark is dropped when the file's diff changes. */
import type { FileDiff } from "@/api/types";
import { useStored } from "@/lib/stored";
import { useSame } from "@/lib/use-same";

const known = new WeakMap<FileDiff, string>();

/** Return a short FNV-1a hash of the file's diff. */
export function fingerprint(file: FileDiff): string {
  let print = known.get(file);
  if (print === undefined) {
    const text = JSON.stringify([
      file.change,
      file.oldPath,
      file.oldMode,
      file.newMode,
      file.added,
      file.removed,
      file.patch,
    ]);
    let hash = 0x811c9dc5;
    for (let at = 0; at < text.length; at += 1) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
    print = (hash >>> 0).toString(36);
    known.set(file, print);
  }
  return print;
}

export interface Viewed {
  has: (file: FileDiff) => boolean;
  set: (file: FileDiff, viewed: boolean) => void;
}

/** `name` identifies what was viewed: a session or a pull request. */
export function useViewed(name: string): Viewed {
  const [stored, store] = useStored<Record<string, string>>(`viewed.${name}`, {});
  const marks = useSame(stored);
  return {
    has: (file) => file.path in marks && marks[file.path] === fingerprint(file),
    set: (file, viewed) => {
      const { [file.path]: _, ...others } = marks;
      store(viewed ? { ...others, [file.path]: fingerprint(file) } : others);
    },
  };
}
