// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// Linux's rules for VFIO groups and their container (drivers/vfio/group.c, container.c).

// A VFIO group that is open. Linux opens one once, and keeps it open while a function of it is; its container has an
// IOMMU, and the mappings for it, while a group is in it. One container per process.
struct group_state {
    int fd;  // -1: closed by its opener
    int in_container, functions;
};
#define GROUPS_MOST 64
static struct group_state groups[GROUPS_MOST];
static int group_count, has_iommu;
static pthread_mutex_t groups_lock = PTHREAD_MUTEX_INITIALIZER;

// The group of a descriptor; with groups_lock.
static struct group_state *group_of(int fd) {
    for (int i = 0; i < group_count; i++)
        if (groups[i].fd == fd) return &groups[i];
    return NULL;
}

static int refuse(int error) {
    errno = error;
    return -1;
}

static int set_container(int fd) {
    struct group_state *group = group_of(fd);
    for (int i = 0; i < group_count && !group; i++)
        if (groups[i].fd < 0 && !groups[i].functions) group = &groups[i];
    if (!group) {
        if (group_count == GROUPS_MOST) return refuse(ENOSPC);
        group = &groups[group_count++];
    }
    if (group->in_container && group->fd == fd) return refuse(EINVAL);
    *group = (struct group_state){.fd = fd, .in_container = 1};
    return 0;
}

static int is_container_used(void) {
    for (int i = 0; i < group_count; i++)
        if (groups[i].in_container) return 1;
    return 0;
}

static int set_iommu(void) {
    if (has_iommu || !is_container_used()) return refuse(EINVAL);
    has_iommu = 1;
    return 0;
}

static void leave_container(struct group_state *group) {
    group->in_container = 0;
    if (is_container_used()) return;
    has_iommu = 0;
    unmap_all();
}

static int unset_container(int fd) {
    struct group_state *group = group_of(fd);
    if (!group || !group->in_container) return refuse(EINVAL);
    if (group->functions) return refuse(EBUSY);
    leave_container(group);
    return 0;
}

static void close_group(struct group_state *group) {
    group->fd = -1;
    if (!group->functions && group->in_container) leave_container(group);
}

// An ioctl of a group or its container, one at a time.
static int group_ioctl(int fd, unsigned long request, void *argument) {
    int result = 0;
    pthread_mutex_lock(&groups_lock);
    struct group_state *group = group_of(fd);
    switch (request) {
    case VFIO_SET_IOMMU: result = set_iommu(); break;
    case VFIO_GROUP_SET_CONTAINER: result = set_container(fd); break;
    case VFIO_GROUP_UNSET_CONTAINER: result = unset_container(fd); break;
    default:
        ((struct vfio_group_status *)argument)->flags =
            VFIO_GROUP_FLAGS_VIABLE | (group && group->in_container ? VFIO_GROUP_FLAGS_CONTAINER_SET : 0);
    }
    pthread_mutex_unlock(&groups_lock);
    return result;
}
