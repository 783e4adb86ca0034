import clsx from "clsx";
import { Tabs as RadixTabs } from "radix-ui";
import { type ReactNode, useEffect, useRef } from "react";
import { useOverflow } from "./use-overflow";

export interface Tab {
  id: string;
  label: ReactNode;
  note?: ReactNode;
}

/** A tab bar. The caller renders the selected tab, so that the tab can be part of the URL. */
export function TabBar({
  tabs,
  value,
  onChange,
  label,
  aside,
  children,
}: {
  tabs: Tab[];
  value: string;
  onChange: (id: string) => void;
  label: string;
  /** At the end of the bar, always visible. */
  aside?: ReactNode;
  children?: ReactNode;
}) {
  const list = useRef<HTMLDivElement>(null);
  const { hasMore, measure } = useOverflow(list);
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs when the selected tab or the list of tabs changes
  useEffect(() => {
    list.current?.querySelector("[data-state=active]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    measure();
  }, [value, tabs.length]);
  return (
    <RadixTabs.Root
      value={value}
      onValueChange={onChange}
      activationMode="manual"
      className="flex min-h-0 flex-1 flex-col"
    >
      <div className="flex shrink-0 items-center border-b">
        <RadixTabs.List
          ref={list}
          aria-label={label}
          onScroll={measure}
          className={clsx(
            "flex min-w-0 flex-1 scroll-px-12 gap-1 overflow-x-auto px-2",
            hasMore && "[mask-image:linear-gradient(to_right,black_calc(100%-3rem),transparent)]",
          )}
        >
          {tabs.map((tab) => (
            <RadixTabs.Trigger
              key={tab.id}
              value={tab.id}
              className="relative flex h-9 items-center gap-1.5 rounded px-2.5 -outline-offset-2 text-[13px] whitespace-nowrap text-soft after:absolute after:inset-x-2 after:bottom-0 after:h-0.5 hover:text-text data-[state=active]:font-medium data-[state=active]:text-text data-[state=active]:after:bg-accent"
            >
              {tab.label}
              {tab.note !== undefined && tab.note !== null && (
                <span className="rounded bg-idle-soft px-1 text-2xs text-soft">{tab.note}</span>
              )}
            </RadixTabs.Trigger>
          ))}
        </RadixTabs.List>
        {aside && <div className="shrink-0 px-1.5">{aside}</div>}
      </div>
      <RadixTabs.Content value={value} tabIndex={-1} className="flex min-h-0 flex-1 flex-col outline-none">
        {children}
      </RadixTabs.Content>
    </RadixTabs.Root>
  );
}
