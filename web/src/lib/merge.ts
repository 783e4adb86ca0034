/** Three-way merge of settings that two people edit at the same time. */
type Plain = Record<string, unknown>;

const isRecord = (value: unknown): value is Plain =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isEqual = (one: unknown, other: unknown) => JSON.stringify(one) === JSON.stringify(other);

/** Return `now` with the changes that were made between `before` and `mine`. Lists and single values are taken from one side, never mixed. */
export function mergeChanges<T extends object>(before: T, mine: T, now: T): T {
  const result: Plain = { ...(now as Plain) };
  const [old, new_] = [before as Plain, mine as Plain];
  for (const key of new Set([...Object.keys(old), ...Object.keys(new_)])) {
    if (isEqual(old[key], new_[key])) continue;
    if (!(key in new_)) delete result[key];
    else if (isRecord(old[key]) && isRecord(new_[key]) && isRecord(result[key])) {
      result[key] = mergeChanges(old[key], new_[key], result[key]);
    } else result[key] = new_[key];
  }
  return result as T;
}
