import { dropTargetForElements } from "@atlaskit/pragmatic-drag-and-drop/adapter/element-adapter";
import { type RefObject, useEffect, useRef, useState } from "react";
import { gapAt, gapOf, placeInGap } from "@/api/card-order";
import type { Column, TaskCard } from "@/api/types";
import { useActions } from "./actions";
import { AutoScroll } from "./auto-scroll";

interface DropPlace {
  /** The gap between the shown cards in which the card will appear. */
  gap: number;
  at: number | null;
}

interface Target {
  column: Column;
  shown: readonly TaskCard[];
  /** Find the dragged card by its id. */
  find: (id: unknown) => TaskCard | undefined;
  /** The positions of all cards, including those not rendered; undefined if the column is collapsed. */
  items?: () => readonly { start: number; size: number }[];
}

/**
 * Make a whole column a drop target. The place is computed from the pointer's height, so cards that are not rendered need no element of
 * their own. Scrolls near the edges. Returns null while nothing is dragged over the column.
 */
export function useDrop(
  element: RefObject<HTMLElement | null>,
  scroller: RefObject<HTMLElement | null>,
  target: Target,
) {
  const [place, setPlace] = useState<DropPlace | null>(null);
  const { move } = useActions();
  const latest = useRef(target);
  latest.current = target;
  useEffect(() => {
    if (!element.current) return;
    let [y, id] = [0, undefined as unknown];
    const locate = (): DropPlace | null => {
      const { shown, items, find, column } = latest.current;
      const card = find(id);
      if (!card) return null;
      if (!items || !scroller.current) return { gap: 0, at: null };
      const top = scroller.current.getBoundingClientRect().top - scroller.current.scrollTop;
      const at = placeInGap(shown, card, gapAt(y - top, items()));
      return { gap: gapOf(shown, card, at, column), at };
    };
    const update = () => {
      const next = locate();
      setPlace((known) => (known?.gap === next?.gap && known?.at === next?.at ? known : next));
    };
    const scrolling = scroller.current ? new AutoScroll(scroller.current, "y", update) : undefined;
    const end = () => {
      scrolling?.stop();
      setPlace(null);
    };
    const stop = dropTargetForElements({
      element: element.current,
      canDrop: ({ source }) => source.data.kind === "card",
      onDrag: ({ location, source }) => {
        ({ clientY: y } = location.current.input);
        id = source.data.id;
        scrolling?.update(location.current.input.clientX, y);
        update();
      },
      onDragLeave: end,
      onDrop: ({ location, source }) => {
        ({ clientY: y } = location.current.input);
        id = source.data.id;
        const card = latest.current.find(id);
        const found = locate();
        end();
        const stays =
          card && found && card.status === latest.current.column && (found.at === null || found.at === card.position);
        if (card && found && !stays) move(card, latest.current.column, found.at);
      },
    });
    return () => {
      stop();
      scrolling?.stop();
    };
  }, [element, scroller, move]);
  return place;
}
