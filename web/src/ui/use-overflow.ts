import { type RefObject, useCallback, useEffect, useState } from "react";

const SLACK_PX = 4;

/** Return whether a horizontally scrolling row has more content to the right. Call `look` after its content has moved. */
export function useOverflow(row: RefObject<HTMLElement | null>): { more: boolean; look: () => void } {
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
