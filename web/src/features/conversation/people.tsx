import { useQuery } from "@tanstack/react-query";
import { createContext, useContext, useMemo } from "react";
import { me, users } from "@/api/queries";
import { members } from "./queries";

type Name = (userId: string | null) => string;

const People = createContext<Name>(() => "Someone");
export const PeopleProvider = People.Provider;

/** Return a function that maps a user id to a display name; users whose name is not visible are “Someone”. */
export const useName = (): Name => useContext(People);

export function useNames(projectId: string | null | undefined): Name {
  const self = useQuery(me).data?.user;
  const admin = self?.role === "admin";
  const everybody = useQuery({ ...users, enabled: admin }).data;
  const others = useQuery({
    ...members(projectId ?? ""),
    enabled: Boolean(projectId) && self !== undefined && !admin,
  }).data;
  return useMemo(() => {
    const names = new Map<string, string>();
    for (const one of [...(everybody ?? []), ...(others ?? [])]) names.set(one.id, one.name);
    return (userId) => (userId === null ? "Sandyard" : userId === self?.id ? "You" : (names.get(userId) ?? "Someone"));
  }, [self, everybody, others]);
}
