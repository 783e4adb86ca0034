import { Tabs as RadixTabs } from "radix-ui";
import type { ReactNode } from "react";

export interface Tab {
  id: string;
  label: ReactNode;
  note?: ReactNode;
}

/** The bar alone; what it shows is the caller's, so that the tab can be part of the address. Panels wear `panel(id)`. */
export function TabBar({
  tabs,
  value,
  onChange,
  label,
  children,
}: {
  tabs: Tab[];
  value: string;
  onChange: (id: string) => void;
  label: string;
  children?: ReactNode;
}) {
  return (
    <RadixTabs.Root
      value={value}
      onValueChange={onChange}
      activationMode="manual"
      className="flex min-h-0 flex-1 flex-col"
    >
      <RadixTabs.List aria-label={label} className="flex shrink-0 gap-1 overflow-x-auto border-b px-2">
        {tabs.map((tab) => (
          <RadixTabs.Trigger
            key={tab.id}
            value={tab.id}
            className="relative flex h-9 items-center gap-1.5 px-2.5 text-[13px] whitespace-nowrap text-soft after:absolute after:inset-x-2 after:bottom-0 after:h-0.5 hover:text-text data-[state=active]:font-medium data-[state=active]:text-text data-[state=active]:after:bg-accent"
          >
            {tab.label}
            {tab.note !== undefined && tab.note !== null && (
              <span className="rounded bg-idle-soft px-1 text-2xs text-soft">{tab.note}</span>
            )}
          </RadixTabs.Trigger>
        ))}
      </RadixTabs.List>
      <RadixTabs.Content value={value} tabIndex={-1} className="flex min-h-0 flex-1 flex-col outline-none">
        {children}
      </RadixTabs.Content>
    </RadixTabs.Root>
  );
}
