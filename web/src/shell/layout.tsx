import { Outlet } from "@tanstack/react-router";
import { lazy, Suspense, useEffect } from "react";
import { showPreview, useOpenPreview } from "@/features/previews/open-preview";
import { LiveProvider } from "@/live/context";
import { LiveLine } from "./live-line";
import { Notifications } from "./notifications";
import { Palette } from "./palette";
import { Sidebar } from "./sidebar";

const PreviewPanel = lazy(() =>
  import("@/features/previews/panel").then((module) => ({ default: module.PreviewPanel })),
);

/** The layout of all signed-in pages: navigation on the left (at the bottom on a phone), the page, and overlays. */
export function Layout() {
  const preview = useOpenPreview();
  useEffect(() => () => showPreview(null), []); // on sign-out
  return (
    <LiveProvider>
      <a
        href="#main"
        className="sr-only focus:not-sr-only focus:fixed focus:top-2 focus:left-2 focus:z-50 focus:bg-raised focus:p-2"
      >
        Skip to content
      </a>
      <div className="flex h-full flex-col-reverse pt-[var(--toasts,0px)] transition-[padding] sm:flex-row sm:pt-0">
        <Sidebar />
        <main id="main" tabIndex={-1} className="flex min-h-0 min-w-0 flex-1 flex-col outline-none">
          <LiveLine />
          <Outlet />
        </main>
        {preview && (
          <Suspense fallback={null}>
            <PreviewPanel preview={preview} />
          </Suspense>
        )}
      </div>
      <Palette />
      <Notifications />
    </LiveProvider>
  );
}
