/** Short names for the API's types. */
import type { Schemas } from "./client";

export type Task = Schemas["TaskView"];
/** A task as shown on a board, without its description. */
export type TaskCard = Schemas["CardView"];
export type Column = Schemas["Column"];
export type Attempt = Schemas["AttemptView"];
export type Project = Schemas["ProjectView"];
export type ProjectSettings = Schemas["ProjectSettings"];
export type Session = Schemas["SessionView"];
export type Sandbox = Schemas["SandboxView"];
export type ListedSandbox = Schemas["ListedSandbox"];
export type Turn = Schemas["TurnView"];
export type Message = Schemas["MessageView"];
export type Ask = Schemas["AskView"];
export type Agent = Schemas["AgentView"];
export type Command = Schemas["CommandView"];
export type PullRequest = Schemas["PullRequestView"];
export type PullSummary = Schemas["PullSummary"];
export type Checkpoint = Schemas["CheckpointView"];
export type Commit = Schemas["CommitView"];
export type Diff = Schemas["DiffView"];
export type FileDiff = Schemas["FileDiffView"];
export type User = Schemas["UserView"];
export type Host = Schemas["HostView"];
export type HostSource = Schemas["HostSourceView"];
export type PlatformEvent = Schemas["EventOut"];
export type McpServer = Schemas["McpServerView"];
export type ModelProvider = Schemas["ModelProviderView"];
export type Schedule = Schemas["ScheduleView"];
export type FileEntry = Schemas["Entry"];
export type Checkout = Schemas["CheckoutView"];
export type GitStatus = Schemas["StatusView"];
export type GitOperation = Schemas["OperationView"];
/** How a branch is updated: check only, rebase, merge, … */
export type UpdateMethod = Schemas["Update"]["how"];
export type MergeMethod = Schemas["MergeMethod"];
export type OutputStream = "stdout" | "stderr";
/** The state of the installation. */
export type InstanceStatus = Schemas["InstanceStatusView"];
export type Quota = Schemas["QuotaView"];
export type UserQuotas = Schemas["UserQuotas"];
export type DiskState = Schemas["DiskStateView"];
export type DiskEntry = Schemas["DiskEntryView"];
export type InstanceProblem = Schemas["ProblemView"];
export type WorkQueue = Schemas["WorkQueueView"];
export type SlowWork = Schemas["SlowWorkView"];
export type EngineReport = Schemas["EngineReport"];
