/** Tabs as a side list, or as one scrolling line above the page if there is no room. Each tab has its own URL. */
import { Link } from "@tanstack/react-router";
import clsx from "clsx";
import { type ReactNode, useEffect, useRef } from "react";
import { useOverflow } from "./use-overflow";

export interface SideTab {
  id: string;
  label: string;
}

export function SideTabs({
  tabs,
  value,
  label,
  children,
}: {
  tabs: SideTab[];
  value: string;
  label: string;
  children: ReactNode;
}) {
  const list = useRef<HTMLUListElement>(null);
  const { hasMore, measure } = useOverflow(list);
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs when another tab is shown
  useEffect(() => {
    const shown = list.current?.querySelector<HTMLElement>("[aria-current=page]");
    if (shown && list.current) list.current.scrollLeft = shown.offsetLeft - list.current.offsetLeft - 40;
    measure();
  }, [value]);
  return (
    <div className="flex flex-col gap-4 md:flex-row md:gap-6">
      <nav aria-label={label} className="md:w-44 md:shrink-0">
        <ul
          ref={list}
          onScroll={measure}
          className={clsx(
            "relative -mx-1 flex gap-1 overflow-x-auto px-1 pb-1 md:sticky md:top-4 md:flex-col md:overflow-visible",
            hasMore && "max-md:[mask-image:linear-gradient(to_right,black_calc(100%-3rem),transparent)]",
          )}
        >
          {tabs.map((tab) => (
            <li key={tab.id}>
              <Link
                to="."
                search={(now) => ({ ...now, tab: tab.id })}
                aria-current={tab.id === value ? "page" : undefined}
                className="block rounded-md px-2.5 py-1.5 text-[13px] whitespace-nowrap text-soft hover:bg-hover hover:text-text aria-[current=page]:bg-idle-soft aria-[current=page]:font-medium aria-[current=page]:text-text"
              >
                {tab.label}
              </Link>
            </li>
          ))}
        </ul>
      </nav>
      <div className="min-w-0 flex-1">{children}</div>
    </div>
  );
}
