import { getRouteApi } from "@tanstack/react-router";
import { useIsAdmin } from "@/api/queries/account";
import { SecretList } from "@/features/secrets/list";
import { BackToWelcome } from "@/ui/back-to-welcome";
import { Page } from "@/ui/page";
import { SideTabs } from "@/ui/side-tabs";
import { About } from "./about";
import { Appearance } from "./appearance";
import { Hosts } from "./hosts";
import { NotificationChoices } from "./notifications";
import { People } from "./people";
import { Profile } from "./profile";
import { Limits } from "./quotas";
import { InstallationStatus } from "./status";
import { Tokens } from "./tokens";

const route = getRouteApi("/inside/settings");
const TABS = [
  { id: "profile", label: "Profile" },
  { id: "appearance", label: "Appearance" },
  { id: "notifications", label: "Notifications" },
  { id: "tokens", label: "API tokens" },
  { id: "secrets", label: "Secrets" },
  { id: "limits", label: "Limits" },
  { id: "people", label: "People", admin: true },
  { id: "status", label: "Status", admin: true },
  { id: "hosts", label: "Hosts", admin: true },
  { id: "about", label: "About" },
];

export function SettingsPage() {
  const { tab, from } = route.useSearch();
  const isAdmin = useIsAdmin();
  const tabs = TABS.filter((candidate) => !candidate.admin || isAdmin);
  const wanted = tab === "users" ? "people" : tab; // the API's word for them
  const shown = tabs.find((candidate) => candidate.id === wanted)?.id ?? "profile";
  return (
    <Page title="Settings" actions={from === "welcome" && <BackToWelcome />}>
      <SideTabs tabs={tabs} value={shown} label="Settings">
        {shown === "profile" && <Profile />}
        {shown === "appearance" && <Appearance />}
        {shown === "notifications" && <NotificationChoices />}
        {shown === "tokens" && <Tokens />}
        {shown === "secrets" && <SecretList />}
        {shown === "limits" && <Limits />}
        {shown === "people" && <People />}
        {shown === "status" && <InstallationStatus />}
        {shown === "hosts" && <Hosts />}
        {shown === "about" && <About />}
      </SideTabs>
    </Page>
  );
}
