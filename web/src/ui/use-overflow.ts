import { type RefObject, useCallback, useEffect, useState } from "react";

const SLACK_PX = 4;

/** Return whether a horizontally scrolling row has more content to the right. Call `measure` after it was scrolled or its content has changed. */
export function useOverflow(row: RefObject<HTMLElement | null>): { hasMore: boolean; measure: () => void } {
  const [hasMore, setHasMore] = useState(false);
  const measure = useCallback(() => {
    const { scrollLeft = 0, clientWidth = 0, scrollWidth = 0 } = row.current ?? {};
    setHasMore(scrollLeft + clientWidth < scrollWidth - SLACK_PX);
  }, [row]);
  useEffect(() => {
    if (!row.current) return;
    const observer = new ResizeObserver(measure);
    observer.observe(row.current);
    return () => observer.disconnect();
  }, [row, measure]);
  return { hasMore, measure };
}
