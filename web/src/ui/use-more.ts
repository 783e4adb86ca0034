import { type RefObject, useCallback, useEffect, useState } from "react";

const SLACK_PX = 4;

/** Whether a row that scrolls sideways has more to the right of what is in sight. `look` again after its contents have moved. */
export function useMore(row: RefObject<HTMLElement | null>): { more: boolean; look: () => void } {
  const [more, setMore] = useState(false);
  const look = useCallback(() => {
    const { scrollLeft = 0, clientWidth = 0, scrollWidth = 0 } = row.current ?? {};
    setMore(scrollLeft + clientWidth < scrollWidth - SLACK_PX);
  }, [row]);
  useEffect(() => {
    if (!row.current) return;
    const observer = new ResizeObserver(look);
    observer.observe(row.current);
    return () => observer.disconnect();
  }, [row, look]);
  return { more, look };
}
