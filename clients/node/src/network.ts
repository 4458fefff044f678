// The network of a client, as a key of limits.
import { isIPv6 } from "node:net";

/** Bits of an IPv6 address that count. Providers usually give a client a network of 56 to 64 bits. */
export const IPV6_SUBNET = 56;

/**
 * Returns the key of a client: its IPv4 address, or the network of its IPv6 address, such as `2001:db8::/56`. A client
 * usually has all addresses of its network, so each of them must not have a limit of its own. With `false` the whole
 * address counts. A text that is no address is returned as it is. The function has the name that it has in
 * express-rate-limit.
 */
export function ipKeyGenerator(ip: string, ipv6Subnet: number | false = IPV6_SUBNET): string {
  const address = ip.split("%", 1)[0] ?? ip;
  if (!isIPv6(address)) return ip;
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address);
  if (mapped?.[1] !== undefined) return mapped[1];
  if (ipv6Subnet === false) return shortest(address);
  const groups = expand(shortest(address)).map((group, index) => {
    const kept = Math.min(16, Math.max(0, ipv6Subnet - 16 * index));
    return (group & (0xffff << (16 - kept)) & 0xffff).toString(16);
  });
  return `${shortest(groups.join(":"))}/${ipv6Subnet}`;
}

/** Returns the shortest form of an address, as a URL writes it. */
function shortest(address: string): string {
  return new URL(`http://[${address}]/`).hostname.slice(1, -1);
}

/** Returns the eight groups of an address in the shortest form. */
function expand(address: string): number[] {
  const [front = [], back] = address.split("::").map((part) => (part === "" ? [] : part.split(":")));
  const zeros = back === undefined ? 0 : 8 - front.length - back.length;
  return [...front, ...Array<string>(zeros).fill("0"), ...(back ?? [])].map((group) => Number.parseInt(group, 16));
}
