import { Link, useRouter } from "@tanstack/react-router";
import clsx from "clsx";
import { KeyRound, LogOut, MoonStar, MoreHorizontal, PanelLeftClose, PanelLeftOpen, Search, Sun } from "lucide-react";
import { useIsAdmin, useMe, useSignOut } from "@/api/queries/account";
import { useStored } from "@/lib/stored";
import { useTheme } from "@/lib/theme";
import { Kbd } from "@/ui/badge";
import { Hint, IconButton } from "@/ui/button";
import { Menu, MenuItem, MenuLine } from "@/ui/menu";
import { showError } from "@/ui/toast";
import { Inbox } from "./inbox";
import { type AppPage, PAGES } from "./pages";
import { openPalette } from "./palette-state";

function usePages(): AppPage[] {
  const isAdmin = useIsAdmin();
  return PAGES.filter((page) => !page.admin || isAdmin);
}

export function Sidebar() {
  const [narrow, setNarrow] = useStored("sidebar.narrow", false);
  const pages = usePages();
  return (
    <>
      <nav
        aria-label="Main navigation"
        className={clsx("hidden shrink-0 flex-col border-r bg-surface sm:flex", narrow ? "w-12" : "w-48")}
      >
        <div className={clsx("flex h-12 items-center gap-2", narrow ? "justify-center" : "px-3")}>
          <Link to="/" aria-label="Sandyard" className="flex items-center gap-2 font-semibold">
            <img src="/favicon.svg" alt="" className="size-6" />
            {!narrow && <span>Sandyard</span>}
          </Link>
        </div>
        <button
          type="button"
          onClick={openPalette}
          className={clsx(
            "mx-2 mb-2 flex h-8 items-center gap-2 rounded-md border text-[13px] text-faint hover:bg-hover",
            narrow ? "justify-center" : "px-2",
          )}
        >
          <Search className="size-4 shrink-0" aria-hidden />
          <span className={narrow ? "sr-only" : "flex-1 text-left"}>
            Search<span className="sr-only"> and commands</span>
          </span>
          {!narrow && (
            <span aria-hidden>
              <Kbd>Ctrl K</Kbd>
            </span>
          )}
        </button>
        <ul className="flex flex-1 flex-col gap-0.5 overflow-y-auto px-2">
          {pages.map((page) => (
            <li key={page.to}>
              <PageLink page={page} narrow={narrow} />
            </li>
          ))}
        </ul>
        <div className={clsx("flex items-center gap-1 border-t p-2", narrow && "flex-col")}>
          <Inbox />
          <AccountMenu narrow={narrow} />
          <IconButton
            label={narrow ? "Expand sidebar" : "Collapse sidebar"}
            side="right"
            size="sm"
            className={narrow ? "" : "ml-auto"}
            onClick={() => setNarrow(!narrow)}
          >
            {narrow ? (
              <PanelLeftOpen className="size-4" aria-hidden />
            ) : (
              <PanelLeftClose className="size-4" aria-hidden />
            )}
          </IconButton>
        </div>
      </nav>
      <PhoneBar pages={pages} />
    </>
  );
}

const LINK =
  "flex h-8 items-center gap-2 rounded-md text-[13px] text-soft hover:bg-hover hover:text-text aria-[current=page]:bg-hover aria-[current=page]:font-medium aria-[current=page]:text-text";

function PageLink({ page, narrow }: { page: AppPage; narrow: boolean }) {
  const link = (
    <Link
      to={page.to}
      activeProps={{ "aria-current": "page" }}
      aria-label={page.label}
      className={clsx(LINK, narrow ? "justify-center" : "px-2")}
    >
      <page.icon className="size-4 shrink-0" aria-hidden />
      {!narrow && page.label}
    </Link>
  );
  return narrow ? (
    <Hint text={page.label} side="right">
      {link}
    </Hint>
  ) : (
    link
  );
}

/** The bottom bar on a phone: the most used pages, the others in a menu. */
function PhoneBar({ pages }: { pages: AppPage[] }) {
  const router = useRouter();
  return (
    <nav
      aria-label="Main navigation"
      className="flex shrink-0 items-stretch border-t bg-surface pb-[env(safe-area-inset-bottom)] sm:hidden"
    >
      {pages
        .filter((page) => page.small)
        .map((page) => (
          <Link
            key={page.to}
            to={page.to}
            activeProps={{ "aria-current": "page" }}
            className="flex min-w-0 flex-1 flex-col items-center gap-0.5 py-1.5 text-2xs text-soft aria-[current=page]:text-accent"
          >
            <page.icon className="size-5" aria-hidden />
            <span className="max-w-full truncate">{page.label}</span>
          </Link>
        ))}
      <Inbox small />
      <Menu
        trigger={
          <button type="button" className="flex flex-1 flex-col items-center gap-0.5 py-1.5 text-2xs text-soft">
            <MoreHorizontal className="size-5" aria-hidden />
            More
          </button>
        }
      >
        {pages
          .filter((page) => !page.small)
          .map((page) => (
            <MenuItem key={page.to} onSelect={() => router.navigate({ to: page.to })}>
              <page.icon className="size-4" aria-hidden />
              {page.label}
            </MenuItem>
          ))}
        <MenuItem onSelect={openPalette}>
          <Search className="size-4" aria-hidden />
          Search
        </MenuItem>
        <MenuLine />
        <AccountItems />
      </Menu>
    </nav>
  );
}

function AccountMenu({ narrow }: { narrow: boolean }) {
  const { data } = useMe();
  const name = data?.user.name ?? "";
  return (
    <Menu
      align="start"
      trigger={
        <button
          type="button"
          className="flex h-8 min-w-0 items-center gap-2 rounded-md px-1 text-[13px] hover:bg-hover"
        >
          <span
            aria-hidden
            className="grid size-6 shrink-0 place-items-center rounded-full bg-accent-soft text-2xs font-semibold text-accent uppercase"
          >
            {name.slice(0, 2)}
          </span>
          <span className={narrow ? "sr-only" : "truncate"}>
            <span className="sr-only">Account: </span>
            {name}
          </span>
        </button>
      }
    >
      <AccountItems />
    </Menu>
  );
}

function AccountItems() {
  const [theme, , choose] = useTheme();
  const router = useRouter();
  const signOut = useSignOut({
    onSuccess: () => void router.navigate({ to: "/sign-in" }),
    onError: showError("Could not sign out"),
  });
  const hasPassword = useMe().data?.hasPassword ?? true;
  return (
    <>
      <MenuItem onSelect={() => router.navigate({ to: "/settings", search: { tab: "profile" } })}>
        <KeyRound className="size-4" aria-hidden />
        {hasPassword ? "Profile and password" : "Set a password"}
      </MenuItem>
      <MenuItem onSelect={() => choose(theme === "dark" ? "light" : "dark")}>
        {theme === "dark" ? <Sun className="size-4" aria-hidden /> : <MoonStar className="size-4" aria-hidden />}
        {theme === "dark" ? "Light theme" : "Dark theme"}
      </MenuItem>
      <MenuItem onSelect={() => signOut.mutate()}>
        <LogOut className="size-4" aria-hidden />
        Sign out
      </MenuItem>
    </>
  );
}
