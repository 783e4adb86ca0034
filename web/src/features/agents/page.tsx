import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Plus } from "lucide-react";
import { useState } from "react";
import { useCurrentUser, useIsAdmin } from "@/api/queries/account";
import { useAgents } from "@/api/queries/agents";
import type { Agent } from "@/api/types";
import { Providers } from "@/features/models/providers";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { ReadOnlyNote } from "@/ui/form";
import { Page } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { TabBar } from "@/ui/tabs";
import { AgentForm } from "./agent-form";
import { AgentRow } from "./row";

const route = getRouteApi("/inside/agents");
const TABS = [
  { id: "agents", label: "Agents" },
  { id: "providers", label: "Model providers" },
];

export function AgentsPage() {
  const { tab } = route.useSearch();
  const navigate = useNavigate();
  const selectedTab = tab === "providers" ? tab : "agents";
  const [editing, setEditing] = useState<Agent | "new" | null>(null);
  return (
    <Page
      title="Agents"
      actions={
        selectedTab === "agents" && (
          <Button look="primary" onClick={() => setEditing("new")}>
            <Plus className="size-4" aria-hidden /> Add an agent
          </Button>
        )
      }
    >
      <TabBar
        tabs={TABS}
        value={selectedTab}
        label="Agents and models"
        onChange={(id) => navigate({ to: "/agents", search: { tab: id } })}
      >
        <div className="pt-4">{selectedTab === "agents" ? <AgentList onEdit={setEditing} /> : <SharedProviders />}</div>
      </TabBar>
      <Dialog
        wide
        open={editing !== null}
        onOpenChange={(open) => !open && setEditing(null)}
        title={editing && editing !== "new" ? editing.title : "Add an agent"}
        description="Any program that speaks the Agent Client Protocol (ACP) over standard input and output."
      >
        {editing && <AgentForm agent={editing === "new" ? undefined : editing} onDone={() => setEditing(null)} />}
      </Dialog>
    </Page>
  );
}

function AgentList({ onEdit }: { onEdit: (agent: Agent) => void }) {
  const query = useAgents();
  const user = useCurrentUser();
  return (
    <Loaded query={query}>
      {(agents) => (
        <ul className="divide-y rounded-lg border bg-surface">
          {agents.map((agent) => (
            <AgentRow
              key={agent.name}
              agent={agent}
              mayChange={
                !agent.builtIn && (user?.role === "admin" || (agent.ownerId !== null && agent.ownerId === user?.id))
              }
              onEdit={() => onEdit(agent)}
            />
          ))}
        </ul>
      )}
    </Loaded>
  );
}

function SharedProviders() {
  const isAdmin = useIsAdmin();
  return (
    <>
      <ReadOnlyNote
        reason={
          isAdmin
            ? undefined
            : "These providers are shared: only administrators can change them. A project can have its own."
        }
      />
      <Providers frozen={!isAdmin} />
    </>
  );
}
