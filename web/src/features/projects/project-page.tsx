import { getRouteApi, Link } from "@tanstack/react-router";
import { useProject } from "@/api/queries/projects";
import type { Project } from "@/api/types";
import { McpServers } from "@/features/mcp/servers";
import { Providers } from "@/features/models/providers";
import { SecretList } from "@/features/secrets/list";
import { BackToWelcome } from "@/ui/back-to-welcome";
import { Badge } from "@/ui/badge";
import { ReadOnlyNote } from "@/ui/form";
import { Page } from "@/ui/page";
import { SideTabs } from "@/ui/side-tabs";
import { Loaded } from "@/ui/states";
import { AccessTab } from "./access-tab";
import { AgentTab } from "./agent-tab";
import { BoardTab } from "./board-tab";
import { ForgeTab } from "./forge-tab";
import { GeneralTab } from "./general-tab";
import { MembersTab } from "./members-tab";
import { NetworkTab } from "./network-tab";
import { PolicyTab } from "./policy-tab";
import { useReadOnlyReason } from "./project-form";
import { SetupTab } from "./setup-tab";

const TABS = [
  { id: "general", label: "General" },
  { id: "access", label: "Repository access" },
  { id: "agent", label: "Agent" },
  { id: "setup", label: "Setup and verification" },
  { id: "forge", label: "Git and forge" },
  { id: "board", label: "Board and budgets" },
  { id: "policy", label: "Command policy" },
  { id: "network", label: "Network" },
  { id: "secrets", label: "Secrets" },
  { id: "models", label: "Models" },
  { id: "members", label: "Members" },
];

const route = getRouteApi("/inside/projects/$projectId");

export function ProjectPage() {
  const { projectId } = route.useParams();
  const { tab, from } = route.useSearch();
  const query = useProject(projectId);
  const shown = TABS.find((candidate) => candidate.id === tab)?.id ?? "general";
  return (
    <Page
      title={query.data?.name ?? "Project"}
      actions={
        from === "welcome" ? <BackToWelcome project={projectId} /> : query.data && <ProjectLinks project={query.data} />
      }
    >
      <SideTabs tabs={TABS} value={shown} label="Project settings">
        <Loaded query={query}>
          {(project) => <SettingsTab key={`${project.id}:${shown}`} tab={shown} project={project} />}
        </Loaded>
      </SideTabs>
    </Page>
  );
}

function ProjectLinks({ project }: { project: Project }) {
  const link = "text-[13px] text-accent underline underline-offset-2";
  return (
    <>
      {project.archivedAt && <Badge tone="warn">Archived</Badge>}
      <Link to="/board" search={{ project: project.id }} className={link}>
        Board
      </Link>
      <Link to="/schedules" search={{ project: project.id }} className={link}>
        Schedules
      </Link>
      <Link to="/usage" search={{ project: project.id }} className={link}>
        Usage
      </Link>
    </>
  );
}

function SettingsTab({ tab, project }: { tab: string; project: Project }) {
  const frozen = useReadOnlyReason(project);
  return (
    <>
      <ReadOnlyNote reason={frozen} />
      {tab === "general" && <GeneralTab project={project} />}
      {tab === "access" && <AccessTab project={project} />}
      {tab === "agent" && (
        <>
          <AgentTab project={project} />
          <McpServers projectId={project.id} frozen={Boolean(frozen)} />
        </>
      )}
      {tab === "setup" && <SetupTab project={project} />}
      {tab === "forge" && <ForgeTab project={project} />}
      {tab === "board" && <BoardTab project={project} />}
      {tab === "policy" && <PolicyTab project={project} />}
      {tab === "network" && <NetworkTab project={project} />}
      {tab === "secrets" && <SecretList projectId={project.id} frozen={Boolean(frozen)} />}
      {tab === "models" && <Providers projectId={project.id} frozen={Boolean(frozen)} />}
      {tab === "members" && <MembersTab project={project} />}
    </>
  );
}
