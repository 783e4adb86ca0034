import { createContext, useContext, useMemo } from "react";
import { useCurrentUser } from "@/api/queries/account";
import { useMembers } from "@/api/queries/projects";
import { useUsers } from "@/api/queries/users";

type Name = (userId: string | null) => string;

const People = createContext<Name>(() => "Someone");
export const PeopleProvider = People.Provider;

/** Return a function that maps a user id to a display name; users whose name is not visible are “Someone”. */
export const useName = (): Name => useContext(People);

export function useNames(projectId: string | null | undefined): Name {
  const self = useCurrentUser();
  const admin = self?.role === "admin";
  const everybody = useUsers({ enabled: admin }).data;
  const others = useMembers(projectId ?? "", {
    enabled: Boolean(projectId) && self !== undefined && !admin,
  }).data;
  return useMemo(() => {
    const names = new Map<string, string>();
    for (const user of [...(everybody ?? []), ...(others ?? [])]) names.set(user.id, user.name);
    return (userId) => (userId === null ? "Sandyard" : userId === self?.id ? "You" : (names.get(userId) ?? "Someone"));
  }, [self, everybody, others]);
}
