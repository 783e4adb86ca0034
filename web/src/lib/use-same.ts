import { useRef } from "react";

/** Return the previous object while the value is deeply equal: reading from storage creates a new object each time. */
export function useSame<T>(value: T): T {
  const kept = useRef(value);
  if (kept.current !== value && JSON.stringify(kept.current) !== JSON.stringify(value)) kept.current = value;
  return kept.current;
}
