import { Outlet } from "@tanstack/react-router";
import { LiveProvider } from "@/live/context";
import { LiveLine } from "./live-line";
import { Notifications } from "./notifications";
import { Palette } from "./palette";
import { Sidebar } from "./sidebar";

/** Everything behind the door: the places on the left (below, on a phone), the page, and what floats above it. */
export function Layout() {
  return (
    <LiveProvider>
      <a
        href="#main"
        className="sr-only focus:not-sr-only focus:fixed focus:top-2 focus:left-2 focus:z-50 focus:bg-raised focus:p-2"
      >
        Skip to the page
      </a>
      <div className="flex h-full flex-col-reverse sm:flex-row">
        <Sidebar />
        <main id="main" className="flex min-h-0 min-w-0 flex-1 flex-col">
          <LiveLine />
          <Outlet />
        </main>
      </div>
      <Palette />
      <Notifications />
    </LiveProvider>
  );
}
