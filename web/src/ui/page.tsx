import { type ReactNode, useEffect } from "react";

/** A scrolling page: title (also of the browser tab), actions, content. */
export function Page({
  title,
  actions,
  children,
  wide = false,
}: {
  title: string;
  actions?: ReactNode;
  children: ReactNode;
  wide?: boolean;
}) {
  useTitle(title);
  return (
    <div className="min-h-0 flex-1 overflow-y-auto">
      <div className={wide ? "px-3 py-4 sm:px-5" : "mx-auto max-w-5xl px-3 py-4 sm:px-5"}>
        <div className="mb-4 flex flex-wrap items-center gap-2">
          <h1 className="mr-auto text-lg font-semibold">{title}</h1>
          {actions}
        </div>
        {children}
      </div>
    </div>
  );
}

export function useTitle(title: string | undefined): void {
  useEffect(() => {
    document.title = title ? `${title} · Sandyard` : "Sandyard";
  }, [title]);
}

export function Section({
  title,
  description,
  actions,
  children,
}: {
  title: string;
  description?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
}) {
  return (
    <section className="mb-6">
      <div className="mb-2 flex flex-wrap items-end gap-2">
        <div className="mr-auto">
          <h2 className="text-[15px] font-semibold">{title}</h2>
          {description && <p className="max-w-prose text-xs text-soft">{description}</p>}
        </div>
        {actions}
      </div>
      <div className="rounded-lg border bg-surface">{children}</div>
    </section>
  );
}
